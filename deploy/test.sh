#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything and runs every test; the last line counts them.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: deploy/test.sh [bazel target pattern ...]

Installs missing Debian packages, builds, and runs the tests and the checks of tests/lint.
Ends with "N passed, N failed" (and ", N skipped" if any), counting test cases;
the exit status is 0 only if none failed.
With patterns (//server/..., //common/program:env_flags_test) runs only those tests and no check.
  --help   prints this text
USAGE
}

patterns=()
for argument in "$@"; do
  case $argument in
    --help | -h) usage; exit 0 ;;
    -*) usage >&2; echo "error: unknown option $argument" >&2; exit 2 ;;
    *) patterns+=("$argument") ;;
  esac
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export HOME="${HOME:-$(getent passwd "$EUID" | cut -d: -f6)}"
deploy/setup.sh --test

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# One limit for the whole run, whatever hangs: a machine half as fast as the usual two cores needs most of it. Each Bazel
# test has its own, shorter limit.
deadline=$((SECONDS + 78 * 60))
bounded() {
  local left=$((deadline - SECONDS))
  ((left > 0)) || return 124
  timeout --foreground --signal=INT --kill-after=60s "${left}s" "$@" </dev/null
}

# Runs a script and keeps its log and exit status.
run_check() {
  local status=0 name
  name=$(basename "$1" .sh)
  bounded "$1" >"$results/$name.log" 2>&1 || status=$?
  echo "$status $1" >"$results/$name.status"
}

if ((${#patterns[@]} == 0)); then
  for check in tests/lint/check_*.sh; do
    # As many at once as there are processors.
    while (($(jobs -pr | wc -l) >= $(nproc))); do wait -n; done
    echo "test: $(basename "$check" .sh)"
    run_check "$check" &
  done
  wait
  echo "test: building (many minutes, the first time)"
  # A target that does not build fails again in the test run below, where it is counted.
  bounded bazel build --keep_going //... || true
fi

echo "test: running"
status=0
# run_tests NAME [BAZEL OPTION]... -- PATTERN...
run_tests() {
  local ended=0
  bounded bazel test --keep_going --test_output=summary --build_event_json_file="$results/$1.json" "${@:2}" || ended=$?
  # 3: tests failed, which are counted. Any other error counts more.
  if ((ended > 0)) && [[ $status == [03] ]]; then status=$ended; fi
}
if ((${#patterns[@]} == 0)); then
  # Bazel runs no more tests at once than --jobs says.
  at_once=$((2 * $(nproc)))
  run_tests waiting --jobs="$at_once" --local_test_jobs="$at_once" -- //tests:waiting
  patterns=(//... -//tests:waiting)
fi
# As many tests at once as there are processors, which is Bazel's default. With one more, tests whose processes compute
# took up to three times as long, beyond their limits.
run_tests others -- "${patterns[@]}"
/usr/bin/python3 deploy/count_tests.py "$results" "$status"
