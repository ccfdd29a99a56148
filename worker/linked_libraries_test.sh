#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the worker $1 loads of NVIDIA's when it starts: with $2 "linked" cuBLAS (and cuDNN, where the toolkit has it),
# found without LD_LIBRARY_PATH; with "at_need" nothing.
set -euo pipefail

needed=$(readelf -d "$1" | grep NEEDED)
case $2 in
  linked)
    for library in libcublas libcublasLt; do
      grep -q "\[$library\.so\.[0-9]*\]" <<<"$needed" || { echo "the worker does not link $library" >&2; exit 1; }
    done
    if env -u LD_LIBRARY_PATH ldd "$1" | grep 'not found' >&2; then exit 1; fi
    ;;
  at_need)
    if grep -E '\[lib(cu|nccl)' <<<"$needed" >&2; then echo "the worker links these" >&2; exit 1; fi
    ;;
  *) echo "got \"$2\", want linked or at_need" >&2; exit 2 ;;
esac
# Starts on a machine without a driver.
"$1" --help >/dev/null
