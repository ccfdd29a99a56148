#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The long form of tests/fault and tests/fuzz.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: tests/fault/soak.sh [--minutes N] [--parts P,...] [--seed N] [--json]

Builds the programs, then injects faults into real servers and workers for N minutes. Exits with 1 if an acknowledged
push was lost or applied twice, a program hung or crashed, fuzzing has a finding, training missed its accuracy, or
memory grew. docs/design/reliability.md explains each number.

  --minutes N    duration, 1 to 10000 (default: 5), without building; some parts finish the round that they have begun
  --parts P,...  runs only these parts (default: all but big_shard)
                   training    N minutes, alongside the others: `ballast launch` trains while its servers and workers
                               are killed, next to the same job without kills; want the same accuracy
                   faults      30% of N: replies lost after the push was applied, cut connections, partitions, overload,
                               kills, lost and full disks, damaged files
                   cable       15%: the cable between servers and workers is pulled for 30 s at a time
                   workers     10%: a job's workers are killed one after the other, sync and async
                   checkpoint  8%: a job's servers are killed while it takes a checkpoint
                   tables      10%, or all of N if it is the only part: rows of sparse tables count their uses while
                               servers and workers are killed, async under wal and wal_sync, sync, and with
                               standbys; want every row exact
                   big_shard   45%: a standby of up to 2 GiB (with 5 minutes) behind a link of 20 MB/s, under load; runs
                               only by name
                   noise       7%: malformed calls
                   hostile     15%: attacks on the servers of a job that trains, with a reader's token or none; want the
                               accuracy of the same job without attacks, at least 0.7 of its throughput, and bounded
                               memory
                   slow_disk   10%: control calls while a server saves to a slow disk, resumes, creates tensors, gets
                               pushes at full load, and is stopped for 5 s; want no failed call and no lost member
                   fuzz        15%: damaged input for every parser
                 With `--minutes 30` training takes half an hour, with a kill every 26 s on average; `--parts training`
                 gives it the whole machine
  --seed N       seed of all random choices (default: 1)
  --json         prints one JSON object on standard output at the end
  --help         prints this text
USAGE
}

fail() {
  echo "error: $1" >&2
  exit 2
}

all_parts="training faults cable workers checkpoint tables big_shard noise hostile slow_disk fuzz"
# big_shard needs the memory of 4 GiB of state and runs only by name.
parts=${all_parts/big_shard /}
minutes=5
seed=1
json=0
while (($# > 0)); do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --json) json=1 ;;
    --minutes | --seed)
      (($# > 1)) || fail "$1 needs a value"
      [[ $2 =~ ^[0-9]{1,5}$ ]] && ((10#$2 >= 1 && 10#$2 <= 10000)) || fail "$1: got \"$2\", want 1 to 10000"
      if [[ $1 == --minutes ]]; then minutes=$((10#$2)); else seed=$((10#$2)); fi
      shift
      ;;
    --parts)
      (($# > 1)) && [[ -n $2 ]] || fail "$1 needs a value"
      parts=${2//,/ }
      for part in $parts; do
        [[ " $all_parts " == *" $part "* ]] || fail "--parts: got \"$part\", want some of ${all_parts// /, }"
      done
      shift
      ;;
    *) usage >&2; fail "unknown argument $1" ;;
  esac
  shift
done

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export HOME="${HOME:-$(getent passwd "$EUID" | cut -d: -f6)}"
programs=(//tests/fault:soak //server:ballast_server //worker:ballast_worker //cli:ballast
  //tests:hostile_input_test //tests:hostile_limits_test //tests/fault/control:slow_disk_server
  //tests/fault/tables:counting_worker_main)
echo "soak: building" >&2
timeout --foreground --signal=INT --kill-after=60s 30m bazel build "${programs[@]}" >&2

work=$(mktemp -d)
training=
trap '[[ -z $training ]] || pkill -P "$training" || true; rm -rf "$work"' EXIT
failed=0
wanted() { [[ " $parts " == *" $1 "* ]]; }
# Seconds of a part that gets this percentage of the whole time.
share() { echo $((minutes * 60 * $1 / 100)); }
# Kills a command that hangs, minutes after its time; otherwise it ends by itself.
bounded() {
  local seconds=$1
  shift
  timeout --foreground --signal=INT --kill-after=60s $((seconds + 600)) "$@" </dev/null
}
# scenarios NAME PERCENT [FLAG...]: one process that runs scenarios, with its counts in NAME.scenarios.
scenarios() {
  local name=$1 seconds
  seconds=$(share "$2")
  shift 2
  bounded $((seconds * 3)) bazel-bin/tests/fault/soak --server bazel-bin/server/ballast_server \
    --worker bazel-bin/worker/ballast_worker --ballast bazel-bin/cli/ballast \
    --slow_disk_server bazel-bin/tests/fault/control/slow_disk_server \
    --counting_worker bazel-bin/tests/fault/tables/counting_worker_main --seconds "$seconds" --seed "$seed" "$@" \
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
if wanted tables; then
  [[ $parts == tables ]] && tenth=10 || tenth=1
  scenarios tables-async $((4 * tenth)) --scenarios tables_async || failed=1
  scenarios tables-wal-sync $((2 * tenth)) --scenarios tables_wal_sync || failed=1
  scenarios tables-sync $((2 * tenth)) --scenarios tables_sync || failed=1
  scenarios tables-standby $((2 * tenth)) --scenarios tables_standby || failed=1
fi
! wanted big_shard || scenarios big_shard 45 --scenarios big_shard || failed=1
! wanted hostile || scenarios hostile 15 --scenarios hostile || failed=1
! wanted slow_disk || scenarios slow-disk 10 --scenarios slow_disk || failed=1

if wanted noise; then
  # Repeats until the time is over; a round that has begun is finished.
  echo "soak: malformed calls for $(share 7)s" >&2
  end=$((SECONDS + $(share 7)))
  round=0
  while ((round == 0 || SECONDS < end)); do
    round=$((round + 1))
    for test in hostile_input_test hostile_limits_test; do
      bounded 600 "bazel-bin/tests/$test" --gtest_brief=1 \
        --gtest_output="json:$work/noise-$round-$test.json" >"$work/noise.log" 2>&1 && continue
      failed=1
      tail -n 40 "$work/noise.log" >&2
      break 2
    done
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
if "tables" in parts:
    for key in ("worker_kills", "checks", "rows_checked", "rows_wrong", "rows_pulled", "rows_pulled_wrong"):
        result[key] = sum(one.get(key, 0) for one in scenarios if one["scenario"].startswith("tables_"))
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
