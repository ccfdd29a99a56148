#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# speed.py's logic, on the CPU: that it runs what it shall, and says plainly when there is no GPU. $@: the programs.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for program in "$@"; do ln -s "$PWD/$program" "$folder/"; done
python3 bench/gpu/speed.py --programs "$folder" --device cpu --tiny >"$folder/out"
python3 - "$folder/out" <<'CHECK'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert [(each["servers"], each["workers"]) for each in lines[:-1]] == [(1, 1), (2, 1), (1, 1), (1, 2)], lines
ratios = lines[-1]["ratios"]
one, hidden, alone, two = lines[:-1]
assert ratios["communication_hidden"] == {"got": round(1 - hidden["wait_share"], 3), "wanted": 0.9}, ratios
assert ratios["two_workers_over_one"]["got"] == round(two["samples_per_second"] / alone["samples_per_second"], 3), ratios
assert ratios["mlp_bf16_over_gemm_rate"] == {"got": None, "wanted": 0.7}, ratios
CHECK
if CUDA_VISIBLE_DEVICES='' python3 bench/gpu/speed.py --programs "$folder" 2>"$folder/error"; then
  echo "got success without a GPU, want an error" >&2
  exit 1
fi
grep -q '^error: no GPU: ' "$folder/error"
