#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Python package with its library and the programs as one wheel for every Python 3.
set -euo pipefail
export LC_ALL=C

usage() {
  cat <<'USAGE'
Usage: deploy/wheel.sh [--out DIR] [--built DIR]

Builds the wheel of the Python package `ballast`, with libballast.so and the programs, and prints its path and size.
It is for every Python 3 from 3.7 on every x86-64 Linux with a libc as new as Debian 12's (manylinux_2_36_x86_64), and
contains the shared libraries that it needs.
  --out DIR    where to put the wheel (default: dist)
  --built DIR  packs what is built there (such as bazel-bin) and builds nothing
  --help       prints this text
USAGE
}

fail() {
  echo "error: $*" >&2
  exit "${status:-1}"
}

out=dist
built=
while (($# > 0)); do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --out=* | --built=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
    --out | --built)
      [[ -n ${2-} && ${2-} != -* ]] || status=2 fail "$1: got \"${2-}\", want a directory"
      printf -v "${1#--}" %s "$(realpath -m -- "$2")"
      shift 2
      ;;
    *) usage >&2; status=2 fail "unknown argument $1" ;;
  esac
done
out=$(realpath -m -- "$out")

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z $built ]]; then
  deploy/setup.sh
  echo "wheel: building (takes several minutes the first time)"
  built=$(mktemp -d)
  trap 'rm -rf "$built"' EXIT
  keep() {
    local file
    for file in "$@"; do
      install -D "bazel-bin/$file" "$built/$file"
    done
  }
  # Archives that go into programs do not go into the library (docs/decisions/0053-a-c-interface-and-ctypes.md).
  bazel build --config=static //cli:ballast //server:ballast_server //worker:ballast_worker
  keep cli/ballast server/ballast_server worker/ballast_worker
  # C++ that a program exports takes the place of the same in a library that it opens: cuDNN would crash.
  for program in "$built"/{cli/ballast,server/ballast_server,worker/ballast_worker}; do
    exported=$(readelf --dyn-syms --wide "$program" | awk '$7 ~ /^[0-9]+$/ && $8 ~ /^_Z/ {print $8}')
    if [[ -n $exported ]]; then
      echo "error: $program exports" $exported >&2
      exit 1
    fi
  done
  bazel build //client/c:libballast.so
  keep client/c/libballast.so
fi
/usr/bin/python3 deploy/pack_wheel.py "$built" "$out"
