#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks on the stand-in cluster what evictions, drained and lost nodes, and late pods do to a job.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: tests/kubernetes/faults.sh [flags] [test ...]

Checks the stand-in's pods (kubelet_test.py); then renders folders of deploy/kubernetes and runs the cases of
faults_test.py, or only those that are named. Takes some minutes; //tests/kubernetes:cluster_test runs the cheapest.

  --ballast FILE, --server FILE, --worker FILE
                     the programs (default: builds them)
  --no-http          no probe asks the HTTP port (default if the programs have none)
  --help             prints this text

Needs root, for the namespaces of the pods; without it prints SKIPPED and why.
USAGE
}

ballast= server= worker=
flags=()
tests=()
while (($# > 0)); do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --no-http) flags+=("$1") ;;
    --ballast | --server | --worker)
      (($# > 1)) && [[ -n $2 ]] || { echo "error: $1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" %s "$(realpath "$2")"
      shift
      ;;
    --*) usage >&2; echo "error: unknown flag $1" >&2; exit 2 ;;
    *) tests+=("$1") ;;
  esac
  shift
done

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/kubernetes/isolated.sh
source tests/kubernetes/isolated.sh
build_programs "$ballast" "$server" "$worker"
# shellcheck source=tests/lint/node_tools.sh
source tests/lint/node_tools.sh
# shellcheck source=tests/lint/kubernetes_tools.sh
source tests/lint/kubernetes_tools.sh
if ((${#tests[@]} == 0)); then
  "${isolated[@]}" /usr/bin/python3 tests/kubernetes/kubelet_test.py -v
fi
folders=$(mktemp -d)
trap 'rm -rf "$folders"' EXIT
for folder in base overlays/durable jobset trainjob; do
  "$kubectl" kustomize "deploy/kubernetes/$folder" >"$folders/$(basename "$folder").yaml"
done
"${isolated[@]}" /usr/bin/python3 tests/kubernetes/faults_test.py --folders "$folders" --ballast "$ballast" \
  --server "$server" --worker "$worker" "${flags[@]}" "${tests[@]}"
