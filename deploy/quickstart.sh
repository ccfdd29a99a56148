#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a trained network: installs what is missing, builds, trains.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: deploy/quickstart.sh [launch options]

Installs missing Debian packages, builds Ballast and trains examples/fashion_mnist.textproto
with two servers and two workers on this machine. Run again, it starts in seconds.
Options go to `ballast launch`, after the defaults `--servers 2 --workers 2`; for instance
  deploy/quickstart.sh --mode async --workers 4
  --help   prints this
USAGE
}

for argument in "$@"; do
  if [[ $argument == --help || $argument == -h ]]; then
    usage
    exit 0
  fi
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
deploy/setup.sh

echo "quickstart: building (several minutes, the first time)"
bazel build //server:ballast_server //worker:ballast_worker //cli:ballast
exec bazel-bin/cli/ballast launch examples/fashion_mnist.textproto --servers 2 --workers 2 "$@"
