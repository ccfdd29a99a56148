#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds, checks and times the GPU worker on a machine with an NVIDIA GPU; prints one JSON object per line.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: bench/gpu/run.sh [--only PARTS] [--json] [--data DIR] [--programs DIR | --build-only DIR] [--device cuda|cpu]

  --only PARTS         comma-separated parts to run (all):
                         checks    the GPU tests; also memcheck and racecheck if compute-sanitizer is installed
                         mlp       the gradient of a 4096-wide perceptron, relative to PyTorch and to the GPU's
                                   products; memory
                         cnn       the gradient of examples/fashion_mnist_cnn.textproto, relative to PyTorch
                         hidden    share of the communication with two servers that is hidden behind computation
                         sharing   two workers on the GPU, relative to one
                         accuracy  test accuracy of the examples in each precision
  --json               prints no table on stderr
  --data DIR           directory of Fashion-MNIST (the one next to the programs, or /usr/share/datasets/fashion-mnist)
  --build-only DIR     builds everything into DIR, 50 MiB, and runs nothing: for a machine with a GPU but without
                       Bazel. Run DIR/bench/gpu/run.sh --programs DIR there
  --programs DIR       runs the programs in DIR, from --build-only or uncompressed, instead of building
  --device cpu         runs everything small on the CPU, to test this script; the results mean nothing
  --help               prints this help

PyTorch is included if $BALLAST_PYTHON, python3 or /usr/bin/python3 has it. The last line has all ratios, their targets,
and lists the ratios that missed their target or were not measured. The exit status is 0 only if every part that ran
succeeded and no ratio missed its target.
USAGE
}

programs=""
build_only=""
device=cuda
arguments=()
while (($# > 0)); do
  case $1 in
    --programs) programs=${2:?"--programs needs a directory"}; shift 2 ;;
    --build-only | --build_only) build_only=${2:?"--build-only needs a directory"}; shift 2 ;;
    --device) device=${2:?"--device needs cuda or cpu"}; shift 2 ;;
    --only | --data) arguments+=("$1" "${2:?"$1 needs a value"}"); shift 2 ;;
    --json) arguments+=("$1"); shift ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; echo "error: unknown option $1" >&2; exit 2 ;;
  esac
done
# Resolves the caller's paths before this script changes directories.
programs=${programs:+$(realpath -m "$programs")}
build_only=${build_only:+$(realpath -m "$build_only")}
arguments+=(--device "$device")
if [[ $device == cpu ]]; then arguments+=(--tiny); fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

# Builds into the directory $1. Links statically, because the programs may run on another Linux.
build() {
  local targets=(bench/gpu/mlp_benchmark bench/gpu/model_benchmark cli/ballast server/ballast_server
    worker/ballast_worker worker/device/factory/cuda_device_test)
  mkdir -p "$1"
  bazel build --config=static $(printf '//%s ' "${targets[@]}" | sed 's#/\([^/ ]*\) #:\1 #g') >&2
  cp -fL $(printf 'bazel-bin/%s ' "${targets[@]}") "$1/"
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if [[ -n $build_only ]]; then
  build "$scratch"
  mkdir -p "$build_only"/{bench/gpu,examples,data}
  # In one archive with a dictionary larger than all of them, because they share most of their libraries.
  tar -C "$scratch" -cf - . | xz --lzma2=preset=3,dict=192MiB >"$build_only/programs.tar.xz"
  cp -f bench/gpu/run.sh bench/gpu/*.py "$build_only/bench/gpu/"
  rm -f "$build_only"/bench/gpu/*_test.py
  cp -f examples/*.textproto "$build_only/examples/"
  cp -f /usr/share/datasets/fashion-mnist/*.gz "$build_only/data/"
  echo "$(du -sm "$build_only" | cut -f1) MiB in $build_only" >&2
  exit 0
fi
# Checks for a GPU before the build, which takes minutes.
python3 "$here/speed.py" --check-only --device "$device"
if [[ -z $programs ]]; then
  build "$scratch"
  programs=$scratch
elif [[ -e $programs/programs.tar.xz ]]; then
  # Python unpacks it, because xz may be missing.
  python3 -m tarfile -e "$programs/programs.tar.xz" "$scratch"
  # Comes first, so that the caller's own --data overrides it.
  arguments=(--data "$programs/data" "${arguments[@]}")
  programs=$scratch
fi
python3 "$here/speed.py" --programs "$programs" "${arguments[@]}"
