#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every benchmark on this machine and writes the results that docs/benchmarks.md shows to a directory.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: bench/run_all.sh [DIR]

Builds the programs and runs each benchmark as docs/benchmarks.md describes, one after the other; takes about 20 minutes.
Writes machine.txt, and NAME.txt (its tables) and NAME.json (the object) of each benchmark to DIR (bench-results).
Run nothing else meanwhile. Afterwards bench/fill_docs.py DIR docs/benchmarks.md copies the results into the page.
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
# It would keep OpenBLAS, ours and PyTorch's alike, from choosing its kernels for this CPU.
unset OPENBLAS_CORETYPE

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

# Prints one line per benchmark: the name of its files, then its arguments.
benchmarks() {
  cat <<'LIST'
transfer transfer
apply apply
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
