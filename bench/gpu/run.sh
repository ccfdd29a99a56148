#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds, checks and times the GPU device on a machine with an NVIDIA GPU; prints JSON, one object a line.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: bench/gpu/run.sh [--programs FOLDER] [--build-only FOLDER] [--only PART]

  --build-only FOLDER  builds the programs into FOLDER, and runs nothing: for a machine that has a GPU and no Bazel
  --programs FOLDER    runs those of FOLDER instead of building
  --only PART          of checks (the tests), mlp, cnn, hidden (communication) and sharing (two workers on the GPU)
  --help               prints this

Runs the GPU tests, once under compute-sanitizer where it is there, and then speed.py: what a worker must reach, beside
PyTorch where that is there; the last line has all ratios. The exit status is 0 only when all that ran went well.
USAGE
}

programs=""
build_only=""
only=""
while (($# > 0)); do
  case $1 in
    --programs) programs=${2:?"--programs wants a folder"}; shift 2 ;;
    --build-only) build_only=${2:?"--build-only wants a folder"}; shift 2 ;;
    --only) only=${2:?"--only wants a part"}; shift 2 ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; echo "error: unknown option $1" >&2; exit 2 ;;
  esac
done

cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Builds into the folder $1. Static, for the machine that runs them may be another Linux.
build() {
  mkdir -p "$1"
  bazel build --config=static //bench/gpu:mlp_benchmark //cli:ballast //server:ballast_server //worker:ballast_worker >&2
  cp -fL bazel-bin/bench/gpu/mlp_benchmark bazel-bin/cli/ballast bazel-bin/server/ballast_server \
    bazel-bin/worker/ballast_worker "$1/"
  bazel build //worker/device:cuda_device_test >&2
  cp -fL bazel-bin/worker/device/cuda_device_test "$1/"
  # What the test loads besides the C library.
  ldd bazel-bin/worker/device/cuda_device_test | grep -oE '/[^ ]*lib(absl|gtest|gmock|stdc)[^ ]*' |
    xargs -r cp -fL -t "$1"
}

if [[ -n $build_only ]]; then
  build "$build_only"
  exit 0
fi
if [[ -z $programs ]]; then
  programs=$(mktemp -d)
  trap 'rm -rf "$programs"' EXIT
  build "$programs"
fi

status=0
check() {
  local name=$1 result=passed
  shift
  if ! LD_LIBRARY_PATH="$programs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@" >"$name.log" 2>&1; then
    result=failed
    status=1
    tail -40 "$name.log" >&2
  elif ! grep -q '\[       OK' "$name.log"; then
    result=skipped
  fi
  rm -f "$name.log"
  echo "{\"what\": \"$name\", \"result\": \"$result\"}"
}

if [[ -z $only || $only == checks ]]; then
  check gpu_tests "$programs/cuda_device_test"
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
      check "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$programs/cuda_device_test" --gtest_filter='*/fp32'
    done
  else
    echo '{"what": "compute-sanitizer", "result": "not there"}'
  fi
fi
if [[ $only != checks ]]; then
  python3 bench/gpu/speed.py --programs "$programs" ${only:+--only "$only"} || status=1
fi
exit "$status"
