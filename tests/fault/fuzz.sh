#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The long form of tests/fuzz: libFuzzer with the sanitizers on each parser.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: tests/fault/fuzz.sh [--seconds N] [--runs N] [--jobs N] [--corpus DIR] [--json] [parser ...]

Builds the fuzz targets (clang, libFuzzer, address and undefined behavior sanitizers), runs each for its time or number
of runs, and prints the results. Without names it runs all parsers; `wire codec` runs these two. Exits with 1 if a
target has a finding, and prints where the input is kept.

  --seconds N    time per parser, 1 to 86400 (default: 60)
  --runs N       maximum number of runs per parser (default: no limit)
  --jobs N       parsers that run at the same time (default: number of processors)
  --corpus DIR   directory that keeps the corpus for the next run (default: a temporary directory)
  --json         prints one JSON object on standard output at the end
  --help         prints this text
USAGE
}

fail() {
  echo "error: $1" >&2
  exit 2
}

whole_number() {
  [[ $2 =~ ^[0-9]{1,9}$ ]] && (($2 >= $3 && $2 <= $4)) || fail "$1: got \"$2\", want a whole number from $3 to $4"
}

seconds=60
runs=
jobs=$(nproc)
corpus=
json=0
wanted=()
while (($# > 0)); do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --json) json=1 ;;
    --seconds | --runs | --jobs | --corpus)
      (($# > 1)) || fail "$1 needs a value"
      case $1 in
        --seconds) whole_number "$1" "$2" 1 86400; seconds=$2 ;;
        --runs) whole_number "$1" "$2" 1 999999999; runs=$2 ;;
        --jobs) whole_number "$1" "$2" 1 256; jobs=$2 ;;
        --corpus) [[ -n $2 ]] || fail "--corpus: got an empty path, want a directory"; corpus=$2 ;;
      esac
      shift
      ;;
    -*) usage >&2; fail "unknown option $1" ;;
    *) wanted+=("$1") ;;
  esac
  shift
done

# Relative paths are relative to the caller's directory, not to the checkout.
[[ -z $corpus ]] || { mkdir -p "$corpus"; corpus=$(realpath "$corpus"); }
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export HOME="${HOME:-$(getent passwd "$EUID" | cut -d: -f6)}"
mapfile -t parsers < <(sed -n 's/^    name = "\(.*\)_fuzz",$/\1/p' tests/fuzz/BUILD.bazel | grep -v '^dataset$')
for name in "${wanted[@]}"; do
  [[ " ${parsers[*]} " == *" $name "* ]] || fail "parser: got \"$name\", want one of ${parsers[*]}"
done
((${#wanted[@]} == 0)) || parsers=("${wanted[@]}")

targets=()
for name in "${parsers[@]}"; do targets+=("//tests/fuzz:${name}_fuzz"); done
echo "fuzz: building ${#parsers[@]} targets" >&2
timeout --foreground --signal=INT --kill-after=60s 30m bazel build --config=fuzz "${targets[@]}" >&2

work=$(mktemp -d)
findings=$work/findings
mkdir "$findings"
trap 'jobs -p | xargs -r kill 2>/dev/null; wait; rm -rf "$work"' EXIT

# Runs one parser; leaves its log and exit status in $work.
run_one() {
  local name=$1 folder=${corpus:-$work/corpus}/$1 status=0
  mkdir -p "$folder"
  # A hang of 60 s and an allocation of more than 512 MiB are findings, too.
  BALLAST_FUZZ_SEEDS=$folder ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 \
    timeout --signal=INT --kill-after=30s $((seconds + 60)) \
    "bazel-fuzz-bin/tests/fuzz/${name}_fuzz" -max_total_time="$seconds" ${runs:+-runs="$runs"} -max_len=8192 \
    -timeout=60 -report_slow_units=60 -rss_limit_mb=2048 -malloc_limit_mb=512 -print_final_stats=1 -seed=1 \
    -artifact_prefix="$findings/$name-" "$folder" >"$work/$name.log" 2>&1 || status=$?
  echo "$status" >"$work/$name.status"
}

# One shell job per parser, at most $jobs at a time.
for name in "${parsers[@]}"; do
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n; done
  echo "fuzz: $name for ${seconds}s" >&2
  run_one "$name" &
done
wait

failed=0
total=0
objects=()
for name in "${parsers[@]}"; do
  status=$(cat "$work/$name.status")
  count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/$name.log" | tail -1)
  count=${count:-0}
  covered=$(grep -o 'cov: [0-9]*' "$work/$name.log" | tail -1 | cut -d' ' -f2)
  found=0
  if ((status != 0)); then
    found=1
    failed=$((failed + 1))
    kept=$(mktemp -d -t "ballast-fuzz-$name-XXXXXX")
    cp "$work/$name.log" "$kept/log"
    find "$findings" -name "$name-*" -exec cp {} "$kept/" \;
    echo "fuzz: $name has a finding, see $kept" >&2
    tail -n 40 "$work/$name.log" >&2
  fi
  total=$((total + count))
  objects+=("{\"parser\": \"$name\", \"runs\": $count, \"findings\": $found, \"edges\": ${covered:-0}}")
  printf 'fuzz: %-14s %12d runs, %d findings, %s edges\n' "$name" "$count" "$found" "${covered:-0}" >&2
done
if ((json)); then
  list=$(printf ', %s' "${objects[@]}")
  echo "{\"fuzz_seconds\": $seconds, \"fuzz_runs\": $total, \"fuzz_findings\": $failed, \"parsers\": [${list:2}]}"
fi
((failed == 0))
