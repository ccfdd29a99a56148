#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Clang's thread-safety analysis finds no guarded field touched without its mutex.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# First that the analysis works at all.
if clang++ -std=c++20 -fsyntax-only -Wthread-safety -Werror -x c++ - 2>/dev/null <<'CODE'; then
#include "absl/synchronization/mutex.h"
absl::Mutex mutex;
int guarded ABSL_GUARDED_BY(mutex);
int Read() { return guarded; }
CODE
  echo "clang++ let a read without its mutex pass: the analysis is not working" >&2
  exit 1
fi
exec bazel build --config=thread-safety --keep_going //...
