#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Goes from a fresh clone to a trained network: installs missing packages, builds, trains.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: deploy/quickstart.sh [launch options]

Installs missing Debian packages, builds Ballast and trains examples/fashion_mnist.textproto
with two servers and two workers on this machine. A second run starts in seconds.
Passes options to `ballast launch`; without --servers or --workers, 2 of each. For example
  deploy/quickstart.sh --mode async --workers 4
  --help   prints this text
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

echo "quickstart: building (takes several minutes the first time)"
# With the package of the README's Python examples, which adds little.
bazel build //server:ballast_server //worker:ballast_worker //cli:ballast //python
# Flags are given once: a default gives way to the same flag among the options.
defaults=()
for flag in --servers --workers; do
  [[ " $* " == *" $flag"[\ =]* ]] || defaults+=("$flag" 2)
done
exec bazel-bin/cli/ballast launch examples/fashion_mnist.textproto "${defaults[@]}" "$@"
