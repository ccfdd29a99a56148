#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Python clients of stubs that protoc generates train a tensor, and rows of a table, on a real ballast_server.
#
# Usage: python_client_test.sh SERVER CLIENT ROWS BALLAST PROTO...
set -euo pipefail

server=$1
client=$2
rows=$3
ballast=$4
shift 4

fail() {
  echo "FAILED: $*" >&2
  echo "server's log:" >&2
  cat "$TEST_TMPDIR/server.log" >&2 || true
  exit 1
}

stubs=$TEST_TMPDIR/stubs
mkdir -p "$stubs"
protoc -I proto --python_out="$stubs" --grpc_out="$stubs" \
  --plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin "$@"

# Starts a server with these flags; sets $address and $server_pid.
start_server() {
  # Port 0 picks a free port.
  address_file=$TEST_TMPDIR/address
  rm -f "$address_file"
  "$server" --listen 127.0.0.1:0 --address_file "$address_file" "$@" 2>"$TEST_TMPDIR/server.log" &
  server_pid=$!
  trap 'kill -KILL "$server_pid" 2>/dev/null || true' EXIT

  # Waits up to 20 seconds for the file; fails early if the server ends.
  /usr/bin/python3 - "$address_file" "$server_pid" <<'PYTHON' || fail "the server did not start"
import os, select, sys, time
path, pid = sys.argv[1], int(sys.argv[2])
ended = os.pidfd_open(pid)
deadline = time.monotonic() + 20
while not os.path.exists(path):
    if select.select([ended], [], [], 0.02)[0] or time.monotonic() > deadline:
        sys.exit(1)
PYTHON
  address=$(<"$address_file")
}

stop_server() {
  kill -TERM "$server_pid"
  local status=0
  wait "$server_pid" || status=$?
  trap - EXIT
  [[ $status == 0 ]] || fail "the server exited with $status after SIGTERM, want 0"
}

# Runs the client with these flags; sets $status and writes its output to $TEST_TMPDIR/out.
run_client() {
  status=0
  PYTHONPATH=$stubs timeout 40 /usr/bin/python3 "$client" "$address" "$@" >"$TEST_TMPDIR/out" 2>&1 || status=$?
}

# w = 1 - 0.5 g, applied once although the gradient was sent twice.
want="applied 1, learning rate 0.5
sent again: duplicate True
weight [1.0, 0.5, 0.0, -0.5, -1.0, -1.5]"
expect_trained() {
  [[ $status == 0 ]] || fail "client.py exited with $status: $(cat "$TEST_TMPDIR/out")"
  local got
  got=$(<"$TEST_TMPDIR/out")
  [[ $got == "$want" ]] || fail "got
$got
want
$want"
}

start_server
run_client
expect_trained
stop_server

# w = 1 - 0.5 g for each row; row 7 gets two gradients, row 0 none.
want_rows="applied 2, created 2
sent again: duplicate True
row 7: [-1.0, -2.0]
row 0: [1.0, 1.0]
row 18446744073709551615: [-2.0, -3.0]"
start_server
client=$rows run_client
[[ $status == 0 && $(<"$TEST_TMPDIR/out") == "$want_rows" ]] ||
  fail "rows.py: exit status $status, got
$(<"$TEST_TMPDIR/out")
want
$want_rows"
"$ballast" status "$address" >"$TEST_TMPDIR/out" || fail "ballast status: $(<"$TEST_TMPDIR/out")"
grep -Eq '^  table     users: 2 rows, [0-9.]+ (B|KiB|MiB), 1 steps$' "$TEST_TMPDIR/out" ||
  fail "ballast status: $(<"$TEST_TMPDIR/out")"
stop_server

# The same with TLS, client certificates and tokens; a reader's token is refused.
keys=$TEST_TMPDIR/keys
rm -rf "$keys"
"$ballast" keys "$keys" --hosts 127.0.0.1 --job python-example >"$TEST_TMPDIR/out" || fail "$(cat "$TEST_TMPDIR/out")"
start_server --tls_cert "$keys/server.pem" --tls_key "$keys/server.key" --tls_ca "$keys/ca.pem" --token_file "$keys/tokens"
certificates=(--tls-ca "$keys/ca.pem" --tls_cert "$keys/client.pem" --tls_key "$keys/client.key")
run_client "${certificates[@]}" --token_file "$keys/reader.token"
[[ $status == 1 && $(<"$TEST_TMPDIR/out") == "error: $address: PERMISSION_DENIED: "* ]] ||
  fail "with a reader's token: exit status $status, $(cat "$TEST_TMPDIR/out")"
run_client "${certificates[@]}" --token_file "$keys/worker.token"
expect_trained
stop_server

# Without a server the example ends with an error that names the address.
run_client
[[ $status == 1 && $(<"$TEST_TMPDIR/out") == "error: $address: UNAVAILABLE: "* ]] ||
  fail "with no server: exit status $status, $(cat "$TEST_TMPDIR/out")"
echo "passed"
