# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced, in the root of the tree. Sets isolated to the command that runs another one as process 1 of new mount,
# network and PID namespaces, so that nothing of it outlives it, and that ends with this script, however that ends
# (unshare ignores SIGTERM). If that is not possible, prints SKIPPED and ends the script.
isolated=(setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child --mount-proc --)
if ! reason=$("${isolated[@]}" ip link add skipped type bridge 2>&1); then
  echo "SKIPPED: cannot make namespaces and bridges for pods: ${reason:-no reason given}"
  exit 0
fi

# build_programs BALLAST SERVER WORKER: sets ballast, server and worker to these paths, or builds what is empty. Adds
# --no-http to flags if they have no HTTP port.
build_programs() {
  ballast=$1 server=$2 worker=$3
  if [[ -z $ballast || -z $server || -z $worker ]]; then
    echo "building the programs" >&2
    timeout --foreground --signal=INT --kill-after=60s 60m bazel build //cli:ballast //server:ballast_server \
      //worker:ballast_worker >&2
    ballast=${ballast:-$PWD/bazel-bin/cli/ballast}
    server=${server:-$PWD/bazel-bin/server/ballast_server}
    worker=${worker:-$PWD/bazel-bin/worker/ballast_worker}
  fi
  [[ $("$server" --help) == *--http_port* ]] || flags+=(--no-http)
}
