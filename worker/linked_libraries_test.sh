#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks that the worker binary $1 links none of NVIDIA's libraries, half a gigabyte that every start would load, and
# that it starts without them.
set -euo pipefail

if readelf -d "$1" | grep NEEDED | grep -E '\[lib(cu|nccl)' >&2; then
  echo "the worker links these libraries, want none" >&2
  exit 1
fi
"$1" --help >/dev/null
