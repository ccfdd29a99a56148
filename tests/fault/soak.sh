#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The long form of tests/fault and tests/fuzz.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: tests/fault/soak.sh [--minutes N] [--parts P,...] [--seed N] [--json]

Builds what it needs, then makes faults on real servers and workers for N minutes. Ends with 1 where an acknowledged
push was lost or applied twice, where something hung, crashed or was found, where training did not come to its accuracy
or memory grew. docs/design/reliability.md says what each number means.

  --minutes N    1 to 10000; 5. Building is not counted, and some parts finish what they have begun
  --parts P,...  some of these alone; all
                   training    N minutes, beside the others: `ballast launch` trains while its servers and workers are
                               killed, and beside it the same job without kills; want the same accuracy
                   faults      30% of N: replies lost after the push was applied, connections cut, partitions, too much
                               load, kills, lost and full disks, damage
                   cable       15%: the cable between servers and workers pulled for 30 s at a time
                   workers     10%: workers of a job killed one after the other, sync and async
                   checkpoint  8%: servers of a job killed while it takes a checkpoint
                   big_shard   45%: a standby of up to 2 GiB (with 5 minutes) behind a link of 20 MB/s, under load; runs
                               in --parts alone
                   noise       7%: malformed calls
                   hostile     15%: attackers of the servers, with a reader's token or with none, beside a job that
                               trains; want the accuracy of the same job without them, 0.7 of its throughput at least,
                               and servers whose memory stays bounded
                   slow_disk   10%: control calls while a server saves to a slow disk, resumes, makes tensors, is pushed to
                               with all might, and is stopped for 5 s; want every one answered, and nobody lost
                   fuzz        15%: damaged input for every parser
                 With `--minutes 30` training is half an hour with a kill every 26 s on average; `--parts training`
                 leaves the machine to it
  --seed N       of what is random; 1
  --json         prints one JSON object on standard output, as the last thing
  --help         prints this
USAGE
}

fail() {
  echo "error: $1" >&2
  exit 2
}

all_parts="training faults cable workers checkpoint big_shard noise hostile slow_disk fuzz"
# big_shard needs the memory of 4 GiB of state and is run where it is asked for.
parts=${all_parts/big_shard /}
minutes=5
seed=1
json=0
while (($# > 0)); do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --json) json=1 ;;
    --minutes | --seed)
      (($# > 1)) || fail "$1 wants a value"
      [[ $2 =~ ^[0-9]{1,5}$ ]] && ((10#$2 >= 1 && 10#$2 <= 10000)) || fail "$1 is \"$2\", want 1 to 10000"
      if [[ $1 == --minutes ]]; then minutes=$((10#$2)); else seed=$((10#$2)); fi
      shift
      ;;
    --parts)
      (($# > 1)) && [[ -n $2 ]] || fail "$1 wants a value"
      parts=${2//,/ }
      for part in $parts; do
        [[ " $all_parts " == *" $part "* ]] || fail "--parts: got \"$part\", want of ${all_parts// /, }"
      done
      shift
      ;;
    *) usage >&2; fail "unknown argument $1" ;;
  esac
  shift
done

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export HOME="${HOME:-$(getent passwd "$EUID" | cut -d: -f6)}"
programs=(//tests/fault:soak //server:ballast_server //worker:ballast_worker //cli:ballast //tests:hostile_input_test
  //tests/fault/control:slow_disk_server)
echo "soak: building" >&2
timeout --foreground --signal=INT --kill-after=60s 30m bazel build "${programs[@]}" >&2

work=$(mktemp -d)
training=
trap '[[ -z $training ]] || pkill -P "$training" || true; rm -rf "$work"' EXIT
failed=0
wanted() { [[ " $parts " == *" $1 "* ]]; }
# Each part's time, of the whole.
share() { echo $((minutes * 60 * $1 / 100)); }
# What ends in time by itself is killed only where it hangs: minutes later.
bounded() {
  local seconds=$1
  shift
  timeout --foreground --signal=INT --kill-after=60s $((seconds + 600)) "$@" </dev/null
}
# scenarios NAME PERCENT [FLAG...]: one process of them, its counts in NAME.scenarios.
scenarios() {
  local name=$1 seconds
  seconds=$(share "$2")
  shift 2
  bounded $((seconds * 3)) bazel-bin/tests/fault/soak --server bazel-bin/server/ballast_server \
    --worker bazel-bin/worker/ballast_worker --ballast bazel-bin/cli/ballast \
    --slow_disk_server bazel-bin/tests/fault/control/slow_disk_server --seconds "$seconds" --seed "$seed" "$@" \
    >"$work/$name.scenarios"
}

if wanted training; then
  scenarios training 100 --scenarios training &
  training=$!
fi
! wanted faults || scenarios faults 30 || failed=1
! wanted cable || scenarios cable 15 --scenarios pulled_cable || failed=1
if wanted workers; then
  scenarios workers-sync 5 --scenarios worker_kills_sync || failed=1
  scenarios workers-async 5 --scenarios worker_kills_async || failed=1
fi
! wanted checkpoint || scenarios checkpoint 8 --scenarios checkpoint_kills || failed=1
! wanted big_shard || scenarios big_shard 45 --scenarios big_shard || failed=1
! wanted hostile || scenarios hostile 15 --scenarios hostile || failed=1
! wanted slow_disk || scenarios slow-disk 10 --scenarios slow_disk || failed=1

if wanted noise; then
  # Again and again; a round that has begun is finished.
  echo "soak: malformed calls for $(share 7)s" >&2
  end=$((SECONDS + $(share 7)))
  round=0
  while ((round == 0 || SECONDS < end)); do
    round=$((round + 1))
    if ! bounded 600 bazel-bin/tests/hostile_input_test --gtest_brief=1 \
      --gtest_output="json:$work/noise-$round.json" >"$work/noise.log" 2>&1; then
      failed=1
      tail -n 40 "$work/noise.log" >&2
      break
    fi
  done
fi

if wanted fuzz; then
  parsers=$(grep -c '^fuzz_target(' tests/fuzz/BUILD.bazel)
  seconds=$(($(share 15) * $(nproc) / parsers))
  tests/fault/fuzz.sh --seconds "$((seconds > 0 ? seconds : 1))" --json >"$work/fuzz.json" || failed=1
fi

if [[ -n $training ]]; then
  wait "$training" || failed=1
  training=
fi

/usr/bin/python3 - "$work" "$minutes" "$parts" >"$work/all.json" <<'PYTHON'
import glob, json, sys

def load(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {"good": False}

work, minutes, parts = sys.argv[1], int(sys.argv[2]), sys.argv[3].split()
processes = [load(path) for path in sorted(glob.glob(f"{work}/*.scenarios"))]
scenarios = [scenario for process in processes for scenario in process.get("scenarios", [])]
good = all(process["good"] for process in processes)
result = {"minutes": minutes}
for key in dict.fromkeys(key for process in processes for key in process):
    values = [scenario.get(key, 0) for scenario in scenarios]
    if key not in ("scenarios", "good"):
        result[key] = max(values) if key.endswith(("_p50", "_p95", "_max")) else sum(values)
for scenario in scenarios:
    if scenario["scenario"] == "training" and "accuracy" in scenario:
        result["accuracy"] = scenario["accuracy"]
        result["accuracy_without_kills"] = scenario["accuracy_without_kills"]
    if scenario["scenario"] == "slow_disk" and "phases" in scenario:
        result.update({key: value for key, value in scenario.items() if key not in ("scenario", "good", "phases")})
    if scenario["scenario"] == "big_shard" and "seconds_to_step" in scenario:
        for key in ("state_bytes", "seconds_to_step", "seconds_of_link", "standbys", "longest_gap_seconds"):
            result[f"big_shard_{key}"] = scenario[key]
    if scenario["scenario"] == "hostile" and "attacks" in scenario:
        result.update({key: value for key, value in scenario.items() if key not in ("scenario", "good", "attacks")})
        result["hostile_attempts"] = sum(attack["attempts"] for attack in scenario["attacks"])
if "fuzz" in parts:
    fuzz = load(f"{work}/fuzz.json")
    result["fuzz_runs"] = fuzz.get("fuzz_runs", 0)
    result["fuzz_findings"] = fuzz.get("fuzz_findings", 1)
    result["parsers"] = fuzz.get("parsers", [])
    good = good and result["fuzz_findings"] == 0
if "noise" in parts:
    reports = [load(path) for path in glob.glob(f"{work}/noise-*.json")]
    tests = [test for report in reports for suite in report.get("testsuites", []) for test in suite.get("testsuite", [])]
    result["malformed_calls"] = sum(int(test.get("calls", 0)) for test in tests)
    result["malformed_calls_failed"] = sum(report.get("failures", 1) for report in reports)
    good = good and bool(reports) and result["malformed_calls_failed"] == 0
result["scenarios"] = scenarios
result["good"] = good
print(json.dumps(result))
PYTHON
grep -q '"good": true' "$work/all.json" || failed=1
if ((json)); then cat "$work/all.json"; else /usr/bin/python3 -m json.tool "$work/all.json"; fi
exit "$failed"
