#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The C library exports the functions of its header and no other symbol, compiles as C and as C++, and the example trains
# on real servers with it.
#
# Usage: c_library_test.sh SERVER LIBRARY HEADER EXAMPLE
set -euo pipefail

server=$1
library=$2
header=$3
example=$4

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

exported=$(nm --dynamic --defined-only --extern-only "$library" | awk '{print $3}' | grep -v '^libballast' | sort)
declared=$(grep -oE '\bballast_[a-z_]+\(' "$header" | tr -d '(' | sort -u)
[[ $exported == "$declared" ]] || fail "exported symbols and the header differ:
$(diff <(echo "$exported") <(echo "$declared"))"

printf '#include <ballast.h>\nint main(void) { return ballast_version()[0] == 0; }\n' >"$TEST_TMPDIR/version.c"
include=$(dirname "$header")
libraries=(-L"$(dirname "$library")" "-Wl,-rpath,$(realpath "$(dirname "$library")")" -lballast -lm)
cc -std=c99 -pedantic -Wall -Wextra -Werror -I"$include" "$TEST_TMPDIR/version.c" -o "$TEST_TMPDIR/version" "${libraries[@]}"
"$TEST_TMPDIR/version" || fail "the library has no version"
c++ -std=c++11 -pedantic -Wall -Wextra -Werror -I"$include" -xc++ "$TEST_TMPDIR/version.c" -xnone \
  -o "$TEST_TMPDIR/version" "${libraries[@]}"
cc -std=c11 -Wall -Wextra -Werror -I"$include" "$example" -o "$TEST_TMPDIR/train" "${libraries[@]}"

# Waits up to 20 seconds for the server's file; fails early if the server ends.
await_address() {
  /usr/bin/python3 - "$1" "$2" <<'PYTHON'
import os, select, sys, time
path, pid = sys.argv[1], int(sys.argv[2])
ended = os.pidfd_open(pid)
deadline = time.monotonic() + 20
while not os.path.exists(path):
    if select.select([ended], [], [], 0.02)[0] or time.monotonic() > deadline:
        sys.exit(1)
PYTHON
}

# Starts a server for so many workers; sets $address.
start_server() {
  rm -f "$TEST_TMPDIR/address"
  "$server" --workers "$1" --listen 127.0.0.1:0 --address_file "$TEST_TMPDIR/address" 2>"$TEST_TMPDIR/log" &
  server_pid=$!
  trap 'kill -KILL "$server_pid" 2>/dev/null || true' EXIT
  await_address "$TEST_TMPDIR/address" "$server_pid" || fail "the server did not start: $(<"$TEST_TMPDIR/log")"
  address=$(<"$TEST_TMPDIR/address")
}

for workers in 1 2; do
  start_server "$workers"
  pids=()
  for ((rank = 0; rank < workers; rank++)); do
    BALLAST_COORDINATOR=$address timeout 50 "$TEST_TMPDIR/train" >"$TEST_TMPDIR/out$rank" 2>&1 &
    pids+=($!)
  done
  for ((rank = 0; rank < workers; rank++)); do
    wait "${pids[rank]}" || fail "the example failed: $(<"$TEST_TMPDIR/out$rank")"
    [[ $(<"$TEST_TMPDIR/out$rank") == "y = 3.00 x -1.00" ]] || fail "the example printed: $(<"$TEST_TMPDIR/out$rank")"
  done
  kill -KILL "$server_pid"
done

# Without a server, the example ends with an error that names the address and the reason.
status=0
BALLAST_COORDINATOR=127.0.0.1:1 BALLAST_GATHER_TIMEOUT=1 timeout 50 "$TEST_TMPDIR/train" >"$TEST_TMPDIR/out" 2>&1 || status=$?
[[ $status == 1 && $(<"$TEST_TMPDIR/out") == "error: coordinator at 127.0.0.1:1: "*"(UNREACHABLE)" ]] ||
  fail "without a server: status $status, $(<"$TEST_TMPDIR/out")"
BALLAST_RANK=first "$TEST_TMPDIR/train" >"$TEST_TMPDIR/out" 2>&1 &&
  fail "with a bad rank, the example succeeded"
[[ $(<"$TEST_TMPDIR/out") == 'error: BALLAST_RANK: got "first", want a number or a name that ends in -N (INVALID_REQUEST)' ]] ||
  fail "with a bad rank: $(<"$TEST_TMPDIR/out")"
echo "passed"
