#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds, checks and times the GPU worker on a machine with an NVIDIA GPU; prints JSON, one object a line.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: bench/gpu/run.sh [--only PARTS] [--json] [--data FOLDER] [--programs FOLDER | --build-only FOLDER]
                        [--device cuda|cpu]

  --only PARTS         of these, with commas between them (all):
                         checks    the GPU tests, and memcheck and racecheck where compute-sanitizer is
                         mlp       the gradient of a 4096-wide perceptron beside PyTorch and the GPU's products; memory
                         cnn       the gradient of examples/fashion_mnist_cnn.textproto beside PyTorch
                         hidden    how much of the communication with two servers is hidden behind computation
                         sharing   two workers on the GPU beside one
                         accuracy  what the examples reach in each precision
  --json               no table for people on stderr
  --data FOLDER        where Fashion-MNIST is (what came with the programs, else /usr/share/datasets/fashion-mnist)
  --build-only FOLDER  builds all that is needed into FOLDER, 50 MiB, and runs nothing: for a machine that has a GPU and
                       no Bazel. There FOLDER/bench/gpu/run.sh --programs FOLDER runs it
  --programs FOLDER    runs the programs of such a FOLDER, or those that lie in it, instead of building
  --device cpu         runs everything small on the CPU, to try this script; its figures mean nothing
  --help               prints this

PyTorch is compared with where $BALLAST_PYTHON, python3 or /usr/bin/python3 has it. The last line has all ratios, what is
wanted of them, which missed it and which were not measured. The exit status is 0 only when all that ran went well and
missed nothing.
USAGE
}

programs=""
build_only=""
device=cuda
arguments=()
while (($# > 0)); do
  case $1 in
    --programs) programs=${2:?"--programs wants a folder"}; shift 2 ;;
    --build-only) build_only=${2:?"--build-only wants a folder"}; shift 2 ;;
    --device) device=${2:?"--device wants cuda or cpu"}; shift 2 ;;
    --only | --data) arguments+=("$1" "${2:?"$1 wants a value"}"); shift 2 ;;
    --json) arguments+=("$1"); shift ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; echo "error: unknown option $1" >&2; exit 2 ;;
  esac
done
# The caller's paths, before this changes folders.
programs=${programs:+$(realpath -m "$programs")}
build_only=${build_only:+$(realpath -m "$build_only")}
arguments+=(--device "$device")
if [[ $device == cpu ]]; then arguments+=(--tiny); fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."

# Builds into the folder $1. Static, for the machine that runs them may be another Linux.
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
  # Together, and with a dictionary that holds them all: they have most of their libraries in common.
  tar -C "$scratch" -cf - . | xz --lzma2=preset=3,dict=192MiB >"$build_only/programs.tar.xz"
  cp -f bench/gpu/run.sh bench/gpu/*.py "$build_only/bench/gpu/"
  rm -f "$build_only"/bench/gpu/*_test.py
  cp -f examples/*.textproto "$build_only/examples/"
  cp -f /usr/share/datasets/fashion-mnist/*.gz "$build_only/data/"
  echo "$(du -sm "$build_only" | cut -f1) MiB in $build_only" >&2
  exit 0
fi
# Before the build, which takes minutes.
python3 "$here/speed.py" --check-only --device "$device"
if [[ -z $programs ]]; then
  build "$scratch"
  programs=$scratch
elif [[ -e $programs/programs.tar.xz ]]; then
  # By Python, for xz itself may be missing.
  python3 -m tarfile -e "$programs/programs.tar.xz" "$scratch"
  # Before the caller's own, which wins.
  arguments=(--data "$programs/data" "${arguments[@]}")
  programs=$scratch
fi
python3 "$here/speed.py" --programs "$programs" "${arguments[@]}"
