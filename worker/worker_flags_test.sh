#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the worker's flags. $1: the worker binary.
set -euo pipefail

# Checks that the command $2 $3 ... ends with status 2 and the message $1.
refuses() {
  local want=$1 got status=0
  shift
  got=$("$@" 2>&1) || status=$?
  if [[ $status != 2 || $got != *"$want"* ]]; then
    echo "$*: got status $status and \"$got\", want status 2 and \"$want\"" >&2
    exit 1
  fi
}

"$1" --help | grep -A3 -e '--autotune (true)' | grep -q 'algorithms'
refuses 'flag --autotune: got "maybe"' "$1" --autotune=maybe
refuses 'environment variable BALLAST_AUTOTUNE: got "maybe"' env BALLAST_AUTOTUNE=maybe "$1"
# The flag is known, so only the job is missing.
refuses '--job is required' "$1" --noautotune
refuses '--job is required' env BALLAST_AUTOTUNE=false "$1"

"$1" --help | grep -A2 -e '--cuda_graphs (true)' | grep -q 'CUDA graphs'
refuses 'flag --cuda_graphs: got "maybe"' "$1" --cuda_graphs=maybe
refuses '--job is required' "$1" --nocuda_graphs

cat >"$TEST_TMPDIR/job" <<'JOB'
name: "job"
data { train { csv { path: "data.csv" } } }
model {
  layers { dense { units: 1 } }
  loss { mean_squared_error {} }
}
training { epochs: 1 batch_size: 1 }
optimizer { sgd { learning_rate: 1 } }
JOB
refuses '--threads: got -1, want 0 to 1024' "$1" --job="$TEST_TMPDIR/job" --threads=-1
refuses '--rank: got "-1", want a number or a name that ends in -N' "$1" --job="$TEST_TMPDIR/job" --rank=-1
refuses 'cannot connect to "127.0.0.1": want HOST:PORT' "$1" --job="$TEST_TMPDIR/job" --coordinator=127.0.0.1
