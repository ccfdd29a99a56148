#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Times and checks the GPU worker on a machine with an NVIDIA GPU, in at most ten minutes.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: bench/gpu/run.sh [--only PARTS] [--json] [--out FILE] [--data DIR] [--stand-in] [--programs DIR | --build-only DIR]

  --only PARTS         comma-separated parts to run (all, in this order):
                         mlp       training steps of a 4096-wide perceptron, relative to PyTorch, eager and as a CUDA
                                   graph, and to the GPU's products; memory
                         cnn       those of examples/fashion_mnist_cnn.textproto, relative to PyTorch
                         hidden    share of the communication with two servers that is hidden behind computation
                         sharing   two workers on the GPU, relative to one
                         checks    the GPU tests; also memcheck and racecheck if compute-sanitizer is installed
                         accuracy  test accuracy of the examples in each precision
  --json               prints one JSON object with everything that was found, instead of a table
  --out FILE           the file of that object, rewritten after each result (gpu.json)
  --data DIR           directory of Fashion-MNIST (the one next to the programs, or /usr/share/datasets/fashion-mnist)
  --build-only DIR     builds everything into DIR, at most 64 MiB, and runs nothing: for a machine with a GPU but without
                       Bazel or network. Run DIR/bench/gpu/run.sh --programs DIR there
  --programs DIR       runs the programs in DIR, from --build-only or uncompressed, instead of building
  --stand-in           runs every part here, with small shapes on an emulated GPU and PyTorch on the CPU, to test this
                       script; the results mean nothing
  --help               prints this help

Apart from a build, it takes at most ten minutes; each part has its own limit, and a part that fails or takes too long
does not end the others. PyTorch is included if $BALLAST_PYTHON, python3 or /usr/bin/python3 has it; NVIDIA's libraries
may be those of its wheels. The exit status is 0 only if every part passed and no ratio missed its target.
USAGE
}

programs=""
build_only=""
stand_in=""
out=gpu.json
arguments=()
while (($# > 0)); do
  case $1 in
    --programs) programs=${2:?"--programs needs a directory"}; shift 2 ;;
    --build-only | --build_only) build_only=${2:?"--build-only needs a directory"}; shift 2 ;;
    --out) out=${2:?"--out needs a file"}; shift 2 ;;
    --only) arguments+=("$1" "${2:?"$1 needs a value"}"); shift 2 ;;
    --data) arguments+=("$1" "$(realpath -m "${2:?"$1 needs a value"}")"); shift 2 ;;
    --stand-in | --stand_in) stand_in=1; arguments+=(--stand-in); shift ;;
    --json) arguments+=("$1"); shift ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; echo "error: unknown option $1" >&2; exit 2 ;;
  esac
done
# Resolves the caller's paths before this script changes directories.
programs=${programs:+$(realpath -m "$programs")}
build_only=${build_only:+$(realpath -m "$build_only")}
arguments+=(--out "$(realpath -m "$out")")

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

# Builds the targets $2... into the directory $1, with Bazel's options in ${options[@]}.
build() {
  local folder=$1
  shift
  mkdir -p "$folder"
  bazel build "${options[@]}" $(printf '//%s ' "$@" | sed 's#/\([^/ ]*\) #:\1 #g') >&2
  cp -fL $(printf 'bazel-bin/%s ' "$@") "$folder/"
}

build_programs() {
  # Static, because the programs may run on another Linux.
  local options=(--config=static)
  build "$1" bench/gpu/mlp_benchmark bench/gpu/model_benchmark cli/ballast server/ballast_server worker/ballast_worker \
    worker/device/factory/cuda_device_test
}

build_stand_ins() {
  local options=()
  build "$1" bench/gpu/emulated_mlp_benchmark bench/gpu/emulated_model_benchmark cli/ballast server/ballast_server \
    tests/emulated_worker worker/device/cuda/emulated_device_test
}

# Gives the programs with an emulated GPU in $1 the names of those that they replace.
rename_stand_ins() {
  local names="mlp_benchmark:emulated_mlp_benchmark model_benchmark:emulated_model_benchmark"
  names+=" ballast_worker:emulated_worker cuda_device_test:emulated_device_test"
  for each in $names; do
    if [[ -e $1/${each#*:} ]]; then mv -f "$1/${each#*:}" "$1/${each%:*}"; fi
  done
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if [[ -n $build_only ]]; then
  build_programs "$scratch"
  mkdir -p "$build_only"/{bench/gpu,examples,data}
  # In one archive with a dictionary larger than all of them, because they share most of their libraries.
  tar -C "$scratch" -cf - . | xz --lzma2=preset=3,dict=192MiB >"$build_only/programs.tar.xz"
  cp -f bench/gpu/run.sh bench/gpu/*.py "$build_only/bench/gpu/"
  rm -f "$build_only"/bench/gpu/*_test.py
  cp -f examples/*.textproto "$build_only/examples/"
  cp -f /usr/share/datasets/fashion-mnist/*.gz "$build_only/data/"
  size=$(du -sm --apparent-size "$build_only" | cut -f1)
  echo "$size MiB in $build_only" >&2
  if ((size > 64)); then
    echo "error: $build_only: got $size MiB, want at most 64" >&2
    exit 1
  fi
  exit 0
fi
# Checks for a GPU before the build, which takes minutes.
python3 "$here/speed.py" --check-only "${arguments[@]}"
if [[ -z $programs ]]; then
  if [[ -n $stand_in ]]; then build_stand_ins "$scratch"; else build_programs "$scratch"; fi
  programs=$scratch
  # The time of the build does not count.
  SECONDS=0
elif [[ -e $programs/programs.tar.xz ]]; then
  # xz may be missing here, and so may Python's.
  tar -C "$scratch" -xJf "$programs/programs.tar.xz" 2>/dev/null ||
    python3 -m tarfile -e "$programs/programs.tar.xz" "$scratch"
  # Comes first, so that the caller's own --data overrides it.
  arguments=(--data "$programs/data" "${arguments[@]}")
  programs=$scratch
fi
if [[ -n $stand_in ]]; then
  # `ballast launch` finds the worker under its usual name.
  if [[ $programs != "$scratch" ]]; then cp -L "$programs"/* "$scratch/" && programs=$scratch; fi
  rename_stand_ins "$scratch"
fi
python3 "$here/speed.py" --programs "$programs" --seconds $((590 - SECONDS)) "${arguments[@]}"
