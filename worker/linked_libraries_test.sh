#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks that the worker binary $1 links none of NVIDIA's libraries, half a gigabyte that every start would load.
set -euo pipefail

needed=$(readelf -d "$1" | grep NEEDED)
if grep -E '\[lib(cu|nccl)' <<<"$needed" >&2; then
  echo "the worker links these libraries, want none" >&2
  exit 1
fi
# The worker starts on a machine without a driver.
"$1" --help >/dev/null
