#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the rendered objects of deploy/kubernetes on a stand-in for a cluster.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: tests/kubernetes/run.sh [flags]

Renders a folder of deploy/kubernetes and runs its pods with the real programs, each in network, mount, PID, IPC and
UTS namespaces of its own, under a stand-in for Job, JobSet, StatefulSet, scheduler, DNS and kubelet. Evicts pods, one
after the other, and waits until each is replaced, at another address, and part of the job again. Exits with 1 if an
acknowledged push was lost or applied twice, or if the job fails.

  --evictions N      number of evictions (default: 5); another job starts if one ends before that
  --folder FOLDER    folder of deploy/kubernetes (default: jobset)
  --durability MODE  standby: the folder jobset; wal: the folder overlays/durable
  --epochs N         epochs of each job (default: those of the job file, 12)
  --nodes N          nodes of the cluster (default: 4)
  --delay SECONDS    delay of a Job's first replacement, doubled with each failure (default: 1; in a cluster 10)
  --seed N           seed of the order of evictions (default: 1)
  --timeout SECONDS  longest wait for a job to finish (default: 1800)
  --ballast FILE, --server FILE, --worker FILE
                     the programs (default: builds them)
  --env NAME=VALUE   a variable of every process, such as GRPC_TRACE; may be repeated
  --no-http          no probe asks the HTTP port (default if the programs have none)
  --work FOLDER      new folder for logs and volumes, which stays (default: a temporary one, which is removed)
  --json             prints one JSON object on one line
  --help             prints this text

Needs root, for the namespaces; without it prints SKIPPED and why.
USAGE
}

fail() {
  echo "error: $1" >&2
  exit 2
}

folder=jobset
ballast= server= worker=
flags=()
while (($# > 0)); do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --json | --no-http) flags+=("$1") ;;
    --folder | --durability | --ballast | --server | --worker | --evictions | --epochs | --nodes | --delay | --seed | \
      --timeout | --work | --env)
      (($# > 1)) && [[ -n $2 ]] || fail "$1 needs a value"
      case $1 in
        --folder) folder=$2 ;;
        --durability)
          case $2 in
            standby) folder=jobset ;;
            wal) folder=overlays/durable ;;
            *) fail "--durability: got \"$2\", want standby or wal" ;;
          esac
          ;;
        --ballast) ballast=$(realpath "$2") ;;
        --server) server=$(realpath "$2") ;;
        --worker) worker=$(realpath "$2") ;;
        --env)
          [[ $2 =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || fail "--env: got \"$2\", want NAME=VALUE"
          flags+=("$1" "$2")
          ;;
        --work) mkdir "$2" && flags+=("$1" "$(realpath "$2")") ;;
        *)
          [[ $2 =~ ^[0-9]+(\.[0-9]+)?$ ]] || fail "$1: got \"$2\", want a number"
          flags+=("$1" "$2")
          ;;
      esac
      shift
      ;;
    *) usage >&2; fail "unknown argument $1" ;;
  esac
  shift
done

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[[ -f deploy/kubernetes/$folder/kustomization.yaml ]] ||
  fail "--folder: got \"$folder\", want a folder of deploy/kubernetes with a kustomization.yaml"
# shellcheck source=tests/kubernetes/isolated.sh
source tests/kubernetes/isolated.sh
build_programs "$ballast" "$server" "$worker"
# shellcheck source=tests/lint/node_tools.sh
source tests/lint/node_tools.sh
# shellcheck source=tests/lint/kubernetes_tools.sh
source tests/lint/kubernetes_tools.sh
rendered=$(mktemp)
trap 'rm -f "$rendered"' EXIT
"$kubectl" kustomize "deploy/kubernetes/$folder" >"$rendered"
"${isolated[@]}" /usr/bin/python3 tests/kubernetes/run.py --objects "$rendered" --ballast "$ballast" \
  --server "$server" --worker "$worker" "${flags[@]}"
