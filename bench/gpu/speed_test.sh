#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs run.sh from end to end, small and on the CPU, and checks its errors. $@: the programs.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/programs"
for program in "$@"; do ln -s "$PWD/$program" "$folder/programs/"; done
run=bench/gpu/run.sh

# Checks that the arguments after $1 and $2 fail with exit status $1 and the message $2.
refused() {
  local want_status=$1 want=$2 status=0
  shift 2
  CUDA_VISIBLE_DEVICES='' "$run" "$@" >"$folder/out" 2>"$folder/error" || status=$?
  if [[ $status != "$want_status" ]] || ! grep -q -- "$want" "$folder/error"; then
    echo "$run $*: got status $status and \"$(cat "$folder/error")\", want $want_status and \"$want\"" >&2
    exit 1
  fi
}

"$run" --help | grep -q -- '--only PARTS'
# These errors come before anything is built.
refused 1 '^error: no GPU: .*--device cpu'
refused 1 '^error: no GPU: ' --programs "$folder/programs" --only mlp
refused 2 'got "mpl", want checks, mlp, cnn, hidden, sharing, accuracy' --programs "$folder/programs" --device cpu --only cnn,mpl
refused 2 'unknown option --fast' --fast

# Without programs to measure with, the part reports an error and the last line lists it as failed.
mkdir "$folder/none"
printf '#!/bin/sh\nexit 3\n' >"$folder/none/mlp_benchmark"
chmod +x "$folder/none/mlp_benchmark"
refused 1 'error: mlp: mlp_benchmark: exit status 3' --programs "$folder/none" --device cpu --only mlp
tail -1 "$folder/out" | grep -q '"failed": \["mlp"\]'

"$run" --programs "$folder/programs" --device cpu --json >"$folder/out" 2>"$folder/error" || {
  cat "$folder/error" >&2
  exit 1
}
python3 - "$folder/out" <<'CHECK'
import json, sys

lines = [json.loads(line) for line in open(sys.argv[1])]
last = lines[-1]
assert last["parts"] == ["checks", "mlp", "cnn", "hidden", "sharing", "accuracy"] and last["failed"] == [], last


def of(what, **fields):
    found = [each for each in lines if each["what"] == what and all(each[key] == fields[key] for key in fields)]
    assert len(found) == 1, (what, fields, lines)
    return found[0]


def got(name):
    return last["ratios"][name]["got"]


bf16 = of("mlp", precision="bf16", **{"with": "ballast"})
assert abs(got("mlp_bf16_over_gemm_rate") - bf16["step_tflops"] / bf16["product_tflops"]) < 1e-3, last
found = of("communication")
assert (found["servers"], found["workers"]) == (2, 1), found
assert 0 <= found["hidden_ms"] <= found["transfer_ms"] <= found["step_ms"], found
assert abs(got("communication_hidden") - found["hidden_share"]) < 1e-3, last
assert abs(got("compute_over_transfers") - found["compute_ms"] / found["transfer_ms"]) < 0.1, last
one, two = of("sharing", workers=1), of("sharing", workers=2)
assert abs(got("two_workers_over_one") - two["samples_per_second"] / one["samples_per_second"]) < 1e-2, last
assert got("fashion_mnist_cnn_fp32_accuracy") == of("accuracy", job="fashion_mnist_cnn")["test_accuracy"] > 0.5, last
assert "fashion_mnist_bf16_accuracy" in last["not_measured"] and last["missed"] == [], last
CHECK
