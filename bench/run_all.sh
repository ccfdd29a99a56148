#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every benchmark on this machine and writes the results that docs/results/README.md shows to a directory.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: bench/run_all.sh [DIR]

Builds the programs and runs each benchmark that docs/results/README.md describes, one after the other, in about
25 minutes. Writes machine.txt, NAME.txt (tables) and NAME.json (one object) for each to DIR (bench-results).
Nothing else should compute meanwhile. Then bench/fill_docs.py DIR docs/results publishes them.

Not among them, because they take longer: the models of docs/results/2026-11-clicks.md, which bench/clicks.py and
bench/flights.py train.
USAGE
}

case "${1:-}" in
  --help | -h) usage; exit 0 ;;
  -*) usage >&2; echo "error: unknown flag $1" >&2; exit 2 ;;
esac
folder=${1:-bench-results}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bazel build //cli:ballast //bench:ballast_bench //server:ballast_server //worker:ballast_worker
bazel shutdown
# They would keep OpenBLAS, both ours and PyTorch's, from choosing its kernels for this CPU.
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE

{
  date --utc +"%Y-%m-%d %H:%M UTC"
  git describe --always --dirty
  bazel-bin/cli/ballast --version
  uname -srm
  lscpu | grep -E '^(Model name|CPU\(s\)|Thread|L1d|L2|L3|Hypervisor)'
  free -h | head -2
  uptime
  /usr/bin/python3 -c 'import torch; print("PyTorch", torch.__version__)' || true
} >"$folder/machine.txt"
cat "$folder/machine.txt"

# Prints for each benchmark the name of its files, then the arguments of `ballast bench`.
benchmarks() {
  cat <<'LIST'
transfer transfer --tls
apply apply
rows rows
step step --peer torch
scaling scaling
straggler straggler
LIST
}

while read -r -a words; do
  name=${words[0]}
  echo "== ballast bench ${words[*]:1} --json"
  bazel-bin/cli/ballast bench "${words[@]:1}" --json </dev/null | tee "$folder/$name.all"
  grep '^{' "$folder/$name.all" | tail -1 >"$folder/$name.json"
  grep -v '^{' "$folder/$name.all" >"$folder/$name.txt"
  rm "$folder/$name.all"
done < <(benchmarks)
echo "results: $folder"
