#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/kubernetes renders, fits Kubernetes' schema, and agrees with itself and with examples/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/lint/node_tools.sh
source tests/lint/node_tools.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$node_tools/node_modules" "$work/node_modules"
cp tests/lint/kubernetes_schema.js "$work/"
cat >"$work/tsconfig.json" <<'CONFIG'
{"compilerOptions": {"noEmit": true, "strict": true, "types": [], "moduleResolution": "node"}, "files": ["rendered.ts"]}
CONFIG

fail() {
  echo "$*" >&2
  exit 1
}

# Checks the rendered file $1 against the schema.
fits_schema() {
  node "$work/kubernetes_schema.js" <"$1" >"$work/rendered.ts" &&
    "$work/node_modules/.bin/tsc" --project "$work"
}

for folder in deploy/kubernetes/base deploy/kubernetes/overlays/{gpu,durable,standby}; do
  kubectl kustomize "$folder" >"$work/$(basename "$folder").yaml" 2>"$work/log" ||
    fail "$folder does not render: $(<"$work/log")"
done
{
  cat "$work/base.yaml"
  for overlay in gpu durable standby; do
    echo ---
    cat "$work/$overlay.yaml"
  done
} >"$work/all.yaml"
fits_schema "$work/all.yaml" || fail "deploy/kubernetes does not fit the schema"

# That a misspelt field is caught: near the top of the servers, deep in the workers (tsc names one for each object).
sed '/^kind: StatefulSet/,/^---/ s/replicas:/replicass:/; /^kind: Job/,$ s/readOnlyRootFilesystem:/readOnlyRootFilesystems:/' \
  "$work/base.yaml" >"$work/misspelt.yaml"
fits_schema "$work/misspelt.yaml" >"$work/log" 2>&1 && fail "the schema check let misspelt fields pass"
for field in replicass readOnlyRootFilesystems; do
  grep -q "'\"\?$field\"\?' does not exist" "$work/log" || fail "the schema check misses $field: $(<"$work/log")"
done

grep -q 'nvidia.com/gpu: "1"' "$work/gpu.yaml" || fail "the overlay asks for no GPU"
grep -A 1 'name: BALLAST_DEVICE' "$work/gpu.yaml" | grep -q 'value: cuda' || fail "the overlay's device is not cuda"

grep -A 1 'name: BALLAST_DURABILITY' "$work/durable.yaml" | grep -q 'value: wal' || fail "the overlay's job keeps no log"
grep -A 1 'name: BALLAST_DURABILITY' "$work/standby.yaml" | grep -q 'value: standby' ||
  fail "the overlay's job has no replicas"
grep -A 1 'name: BALLAST_WITH_STANDBY' "$work/standby.yaml" | grep -q 'value: "true"' ||
  fail "the overlay's servers take no part in pairs"
for overlay in durable standby; do
  state=$(sed -n '/name: BALLAST_STATE_DIR/{n;s/^ *value: //p}' "$work/$overlay.yaml")
  mount=$(grep -B 1 'name: state$' "$work/$overlay.yaml" | sed -n 's/^ *- mountPath: //p')
  [[ -n $mount && $state == "$mount"/* ]] ||
    fail "$overlay: BALLAST_STATE_DIR is '$state', its volume is mounted at '$mount'"
done

# A worker that may try again has its pod replaced; one that said why it cannot does not.
for folder in base gpu durable standby; do
  retries=$(sed -n 's/^  backoffLimit: //p' "$work/$folder.yaml")
  [[ $retries -gt 0 ]] || fail "$folder: a worker's pod is never replaced: backoffLimit is '$retries'"
  permanent=$(sed -n '/action: FailJob/,/^    - action/p' "$work/$folder.yaml" | sed -n 's/^ *- \([0-9]*\)$/\1/p' | xargs)
  [[ $permanent == "1 2" ]] || fail "$folder: the exit codes that fail the job are '$permanent', want 1 and 2"
done

# The numbers that stand in two places each.
value() {
  local found
  found=$(sed -n "s/^ *$1: \"\?\([0-9]*\)\"\?\$/\1/p" "$work/base.yaml")
  [[ $found =~ ^[0-9]+$ ]] || fail "the base says $1 not exactly once"
  echo "$found"
}
servers=$(value BALLAST_SERVERS)
workers=$(value BALLAST_WORKERS)
replicas=$(value replicas)
completions=$(value completions)
parallelism=$(value parallelism)
[[ $servers == "$replicas" ]] || fail "BALLAST_SERVERS is $servers, replicas $replicas"
pairs=$(sed -n 's/^ *replicas: //p' "$work/standby.yaml")
[[ $pairs == $((2 * servers)) ]] || fail "BALLAST_SERVERS is $servers, replicas of overlays/standby $pairs, want twice that"
[[ $workers == "$completions" ]] || fail "BALLAST_WORKERS is $workers, completions $completions"
[[ $workers == "$parallelism" ]] || fail "BALLAST_WORKERS is $workers, parallelism $parallelism"

# The base can hold no file of another folder, so it has a copy.
diff -u examples/fashion_mnist.textproto deploy/kubernetes/base/job.textproto >&2 ||
  fail "to repair: cp examples/fashion_mnist.textproto deploy/kubernetes/base/job.textproto"
