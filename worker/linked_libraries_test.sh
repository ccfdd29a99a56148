#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks which NVIDIA libraries the worker binary $1 links: if $2 is "linked", cuBLAS (and cuDNN if the toolkit has it),
# found without LD_LIBRARY_PATH; if $2 is "at_need", none.
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
    if grep -E '\[lib(cu|nccl)' <<<"$needed" >&2; then echo "the worker links these libraries, want none" >&2; exit 1; fi
    ;;
  *) echo "got \"$2\", want linked or at_need" >&2; exit 2 ;;
esac
# The worker starts on a machine without a driver.
"$1" --help >/dev/null
