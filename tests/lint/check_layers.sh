#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Includes follow the order of the house: proto <- common <- {server, client}; client <- {worker, cli};
# all <- {tests, bench}. examples/ stands beside worker and cli. Bazel's visibility says the same of targets.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Prints the folders that a folder may include from.
allowed() {
  case $1 in
    common) echo "common" ;;
    server) echo "common server" ;;
    client) echo "common client" ;;
    worker) echo "common client worker" ;;
    cli) echo "common client cli" ;;
    examples) echo "common client examples" ;;
    tests | bench) echo "common server client worker cli examples tests bench" ;;
    *) return 1 ;;
  esac
}

bad=0
while IFS=: read -r file line include; do
  from=${file%%/*}
  to=${include#*\"}
  to=${to%%\"*}
  if [[ $to == ./* || $to == ../* || $to != */* ]]; then
    echo "$file:$line: include \"$to\" is not relative to the root" >&2
    bad=1
    continue
  fi
  to=${to%%/*}
  # Only folders of ours have an order; "absl/..." and "ballast/v1/..." do not.
  allowed "$to" >/dev/null || continue
  if ! may=$(allowed "$from"); then
    echo "$file:$line: folder $from has no place in the order; add it to tests/lint/check_layers.sh" >&2
    bad=1
  elif [[ " $may " != *" $to "* ]]; then
    echo "$file:$line: $from includes $to, may include: proto $may" >&2
    bad=1
  fi
done < <(git grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]+"' -- '*.cc' '*.h' '*.cu' '*.cuh')
exit "$bad"
