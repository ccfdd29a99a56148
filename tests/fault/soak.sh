#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The long form of tests/fault and tests/fuzz.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: tests/fault/soak.sh [--minutes N] [--seed N] [--json]

Builds what it needs, then makes faults on real servers for N minutes in all: replies lost after the push was applied,
connections cut, partitions, too much load, kills, malformed calls, damaged input for every parser. Ends with 1 where an
acknowledged push was lost or applied twice, where something hung, crashed or was found. docs/reliability.md says what
each number means.

  --minutes N    1 to 10000; 5. Building is not counted
  --seed N       of what is random; 1
  --json         prints one JSON object on standard output, as the last thing
  --help         prints this
USAGE
}

fail() {
  echo "error: $1" >&2
  exit 2
}

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
    *) usage >&2; fail "unknown argument $1" ;;
  esac
  shift
done

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export HOME="${HOME:-$(getent passwd "$EUID" | cut -d: -f6)}"
programs=(//tests/fault:soak //server:ballast_server //tests:hostile_input_test)
echo "soak: building" >&2
timeout --foreground --signal=INT --kill-after=60s 30m bazel build "${programs[@]}" >&2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Each part's time, of the whole.
share() { echo $((minutes * 60 * $1 / 100)); }
# What ends in time by itself is killed only where it hangs: minutes later.
bounded() {
  local seconds=$1
  shift
  timeout --foreground --signal=INT --kill-after=60s $((seconds + 600)) "$@" </dev/null
}

failed=0
server=bazel-bin/server/ballast_server
bounded "$(share 50)" bazel-bin/tests/fault/soak --server "$server" --seconds "$(share 50)" --seed "$seed" \
  >"$work/faults.json" || failed=1
bounded "$(share 15)" bazel-bin/tests/fault/soak --server "$server" --seconds "$(share 15)" --seed "$seed" \
  --scenarios pulled_cable >"$work/cable.json" || failed=1

# Again and again; a round that has begun is finished.
echo "soak: malformed calls for $(share 10)s" >&2
end=$((SECONDS + $(share 10)))
round=0
while ((SECONDS < end)); do
  round=$((round + 1))
  if ! bounded 600 bazel-bin/tests/hostile_input_test --gtest_brief=1 \
    --gtest_output="json:$work/hostile-$round.json" >"$work/hostile.log" 2>&1; then
    failed=1
    tail -n 40 "$work/hostile.log" >&2
    break
  fi
done

parsers=$(grep -c '^fuzz_target(' tests/fuzz/BUILD.bazel)
seconds=$(($(share 25) * $(nproc) / parsers))
tests/fault/fuzz.sh --seconds "$((seconds > 0 ? seconds : 1))" --json >"$work/fuzz.json" || failed=1

/usr/bin/python3 - "$work" "$minutes" >"$work/all.json" <<'PYTHON'
import glob, json, sys

def load(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {"good": False}

work = sys.argv[1]
faults, cable, fuzz = (load(f"{work}/{name}.json") for name in ("faults", "cable", "fuzz"))
hostile = [load(path) for path in glob.glob(f"{work}/hostile-*.json")]
all = {"minutes": int(sys.argv[2])}
for key, value in faults.items():
    if key == "scenarios" or key == "good":
        continue
    if key.endswith(("_p50", "_p95", "_max")):
        all[key] = max(value, cable.get(key, 0))
    elif key.startswith(("resident_", "descriptors_")):
        all[key] = value
    else:
        all[key] = value + cable.get(key, 0)
all["fuzz_runs"] = fuzz.get("fuzz_runs", 0)
all["fuzz_findings"] = fuzz.get("fuzz_findings", 1)
calls = 0
for report in hostile:
    for suite in report.get("testsuites", []):
        calls += sum(int(test.get("calls", 0)) for test in suite.get("testsuite", []))
all["malformed_calls"] = calls
all["malformed_calls_failed"] = sum(report.get("failures", 1) for report in hostile)
all["scenarios"] = faults.get("scenarios", []) + cable.get("scenarios", [])
all["parsers"] = fuzz.get("parsers", [])
all["good"] = bool(faults.get("good") and cable.get("good") and all["fuzz_findings"] == 0
                   and hostile and all["malformed_calls_failed"] == 0)
print(json.dumps(all))
PYTHON
grep -q '"good": true' "$work/all.json" || failed=1
if ((json)); then cat "$work/all.json"; else /usr/bin/python3 -m json.tool "$work/all.json"; fi
exit "$failed"
