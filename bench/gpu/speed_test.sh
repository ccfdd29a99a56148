#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs run.sh --stand-in from end to end, and checks its errors.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/programs"
for program in bench/gpu/emulated_{mlp,model}_benchmark cli/ballast server/ballast_server tests/emulated_worker \
  worker/device/cuda/emulated_device_test; do
  ln -s "$PWD/$program" "$folder/programs/"
done
run=bench/gpu/run.sh

# Checks that the arguments after $1 and $2 fail with exit status $1 and the message $2.
refused() {
  local want_status=$1 want=$2 status=0
  shift 2
  CUDA_VISIBLE_DEVICES='' "$run" --out "$folder/gpu.json" "$@" >"$folder/out" 2>"$folder/error" || status=$?
  if [[ $status != "$want_status" ]] || ! grep -q -- "$want" "$folder/error"; then
    echo "$run $*: got status $status and \"$(cat "$folder/error")\", want $want_status and \"$want\"" >&2
    exit 1
  fi
}

"$run" --help | grep -q -- '--only PARTS'
# These errors come before anything is built.
refused 1 '^error: no GPU: .*--stand-in'
refused 1 '^error: no GPU: ' --programs "$folder/programs" --only mlp
refused 2 'got "mpl", want mlp, cnn, hidden, sharing, checks, accuracy' --stand-in --programs "$folder/programs" --only cnn,mpl
refused 2 'unknown option --fast' --fast

# A missing program ends its part only; so does a program that fails, whose error is the reason. A run that is
# terminated, here by the program that it starts, keeps what it found.
mkdir "$folder/few"
ln -s "$PWD/worker/device/cuda/emulated_device_test" "$folder/few/"
printf '#!/bin/sh\necho "error: no luck" >&2\nexit 3\n' >"$folder/few/emulated_mlp_benchmark"
printf '#!/bin/sh\n[ "$1" = launch ] && kill -TERM $PPID && exec tail -f /dev/null\nexit 1\n' >"$folder/few/ballast"
chmod +x "$folder/few/emulated_mlp_benchmark" "$folder/few/ballast"
refused 143 'mlp: failed .*mlp_benchmark: exit status 3: error: no luck' --stand-in --programs "$folder/few" \
  --only mlp,cnn,checks,accuracy
python3 - "$folder/gpu.json" <<'CHECK'
import json, sys

parts = json.load(open(sys.argv[1]))["parts"]
results = {name: part["result"] for name, part in parts.items()}
assert results == {"mlp": "failed", "cnn": "failed", "checks": "passed", "accuracy": "interrupted"}, parts
assert "No such file or directory" in parts["cnn"]["reason"], parts
assert parts["checks"]["found"][-1]["passed"] > 20, parts
CHECK

"$run" --programs "$folder/programs" --stand-in --json --out "$folder/gpu.json" >"$folder/out" 2>"$folder/error" || {
  cat "$folder/error" "$folder/out" >&2
  exit 1
}
python3 - "$folder/out" "$folder/gpu.json" <<'CHECK'
import json, statistics, sys

out, file = (json.load(open(path)) for path in sys.argv[1:])
assert out == file
assert out["gpu"] is None and out["stand_in"], out
assert list(out["parts"]) == ["mlp", "cnn", "hidden", "sharing", "checks", "accuracy"], out
assert all(part["result"] == "passed" and part["found"] for part in out["parts"].values()), out


def of(part, what, **fields):
    found = [each for each in out["parts"][part]["found"]
             if each["what"] == what and all(each.get(key) == fields[key] for key in fields)]
    assert len(found) == 1, (part, what, fields, out)
    return found[0]


def got(name):
    return out["ratios"][name]["got"]


def near(a, b):
    return abs(a - b) <= 1e-3 * abs(b) + 1e-3


bf16 = of("mlp", "mlp", precision="bf16", **{"with": "ballast"})
assert len(bf16["rounds"]) == 5 and bf16["step_ms"] == statistics.median(each["step_ms"] for each in bf16["rounds"]), bf16
assert bf16["memory_bytes"] > 0 and "Emulated" in bf16["device"], bf16
if out["torch"] is not None:
    ways = [of("mlp", "mlp", precision="bf16", way=way)["step_ms"] for way in ("eager", "graph")]
    assert near(got("mlp_bf16_over_torch"), min(ways) / bf16["step_ms"]), out
    assert got("cnn_bf16_over_torch") > 0, out
found = of("hidden", "communication")
assert (found["servers"], found["workers"]) == (2, 1), found
assert 0 <= found["hidden_ms"] <= found["transfer_ms"] <= found["step_ms"], found
assert 0 < found["compute_ms"] <= found["step_ms"], found
assert near(got("communication_hidden"), found["hidden_share"]), out
one, two = of("sharing", "sharing", workers=1), of("sharing", "sharing", workers=2)
assert abs(got("two_workers_over_one") - two["samples_per_second"] / one["samples_per_second"]) < 0.02, out
assert of("checks", "gpu_tests")["passed"] > 20 and got("gpu_tests") == 1, out
assert of("checks", "racecheck")["result"] == "not there" and "racecheck" in out["not_measured"], out
for precision in ("fp32", "tf32", "bf16", "fp16"):
    for job in ("fashion_mnist", "fashion_mnist_cnn"):
        accuracy = of("accuracy", "accuracy", job=job, precision=precision)["test_accuracy"]
        assert got(f"{job}_{precision}_accuracy") == round(accuracy, 4), out
assert out["missed"] == [], out
CHECK
