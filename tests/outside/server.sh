# SPDX-License-Identifier: Apache-2.0
# Functions that the tests of this folder share; they are sourced.

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# Starts this ballast_server on a free port; sets $address and $server_pid.
start_server() {
  local address_file=$TEST_TMPDIR/address
  rm -f "$address_file"
  "$1" --listen 127.0.0.1:0 --address_file "$address_file" 2>"$TEST_TMPDIR/server.log" &
  server_pid=$!
  # Waits up to 20 seconds for the file; fails early if the server ends.
  /usr/bin/python3 - "$address_file" "$server_pid" <<'PYTHON' || fail "the server did not start: $(<"$TEST_TMPDIR/server.log")"
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

kill_server() {
  [[ -n ${server_pid-} ]] || return 0
  kill -KILL "$server_pid" 2>/dev/null || true
  wait "$server_pid" 2>/dev/null || true
}

# Fails unless this client example trains its tensor on that server: w = 1 - 0.1 g.
expect_client_trains() {
  local got
  start_server "$2"
  got=$(timeout 40 "$1" "$address") || fail "the client example failed: $got"
  [[ $got == "weight: 0.9 0.8 0.7 0.6" ]] || fail "the client example prints \"$got\", want weight: 0.9 0.8 0.7 0.6"
  kill_server
}
