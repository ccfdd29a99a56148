#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each compilation analyzes locks: Clang with the flags of .bazelrc refuses a guarded field that is touched without its
# mutex.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

grep -q '^build --repo_env=CC=clang$' .bazelrc && grep -q '^build --copt=-Wthread-safety ' .bazelrc || {
  echo ".bazelrc: want the lines \"build --repo_env=CC=clang\" and \"build --copt=-Wthread-safety\"" >&2
  exit 1
}
if clang++ -std=c++20 -fsyntax-only -Wthread-safety -Werror -x c++ - 2>/dev/null <<'CODE'; then
#include "absl/synchronization/mutex.h"
absl::Mutex mutex;
int guarded ABSL_GUARDED_BY(mutex);
int Read() { return guarded; }
CODE
  echo "clang++ let a read without its mutex pass: the analysis is not working" >&2
  exit 1
fi
