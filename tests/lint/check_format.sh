#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# C++ and CUDA sources are as clang-format leaves them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if ! git ls-files -z '*.cc' '*.h' '*.cu' '*.cuh' | xargs -0 -r -n 20 -P 2 clang-format --dry-run -Werror; then
  echo "to repair: git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format -i" >&2
  exit 1
fi
