#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A newcomer's first ten minutes: an empty directory, `ballast` on the PATH, a table of one's own, and the README. The job
# file and the command lines come from the README's section "Your own data"; this script checks what each one gives.
set -eu

usage() {
  cat <<'USAGE'
Usage: tests/newcomer_test.sh [--transcript FILE] [BALLAST SERVER WORKER]

Follows the README's section "Your own data" in an empty directory and checks what every command prints and writes.
Without programs it uses those that Bazel built in this checkout. Takes under three minutes.
  --transcript FILE   also writes the commands and what they printed as a page in Markdown
  --help              prints this text
USAGE
}

transcript=
if [[ ${1:-} == --help || ${1:-} == -h ]]; then usage; exit 0; fi
if [[ ${1:-} == --transcript ]]; then transcript=$(realpath -m "${2:?--transcript: want a file}"); shift 2; fi
if (($# != 0 && $# != 3)); then usage >&2; echo "error: got $# programs, want 0 or 3" >&2; exit 2; fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readme=$root/README.md
work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/newcomer-XXXXXX")
launched=
clean_up() {
  [[ -z $launched ]] || kill -TERM "$launched" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT

fail() {
  echo "FAILED: $*" >&2
  echo "the last command printed:" >&2
  cat "$work/out" "$work/err" >&2 || true
  exit 1
}

mkdir "$work/bin" "$work/here"
programs=("$@")
((${#programs[@]})) || programs=("$root"/bazel-bin/{cli/ballast,server/ballast_server,worker/ballast_worker})
for program in "${programs[@]}"; do
  [[ -x $program ]] || { echo "error: no program $program; build it with: bazel build //..." >&2; exit 2; }
  ln -s "$(realpath "$program")" "$work/bin/$(basename "$program")"
done
PATH=$work/bin:$PATH
unset "${!BALLAST_@}"
cd "$work/here"

# The section of the README, and the indented blocks in it.
section() { awk '/^## /{inside = ($0 == "## Your own data")} inside' "$readme"; }
# Prints the indented block that follows the first line which names $1 in backquotes.
block() { section | awk -v name="\`$1\`" 'index($0, name){found=1; next} found && /^    /{seen=1; print substr($0, 5); next}
  seen && !/^$/{exit} seen && /^$/{print ""}'; }
# Prints the README's command line that contains $1, without its comment.
command_with() {
  local line
  line=$(section | grep -E '^    ballast ' | grep -F -m1 -- "$1") || fail "the README has no command line with \"$1\""
  sed -E 's/^    //; s/ +#.*$//' <<<"$line"
}

# --- Own data: two numbers, a category, labels as text, some values missing ---
write_table() {
  /usr/bin/python3 - "$1" "$2" "$3" <<'PYTHON'
import random, sys
path, rows, with_label = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "label"
draw = random.Random(rows)
plants = {"fern": (30, 9, "green"), "moss": (4, 1, "green"), "poppy": (50, 5, "red")}
with open(path, "w") as out, open(path + ".truth", "w") as truth:
    out.write("height,leaf,color" + (",plant" if with_label else "") + "\n")
    for _ in range(rows):
        plant = draw.choice(sorted(plants))
        height, leaf, color = plants[plant]
        cells = ["%.1f" % draw.gauss(height, height / 8), "%.2f" % draw.gauss(leaf, leaf / 6), color]
        if draw.random() < 0.05:
            cells[1] = ""
        out.write(",".join(cells + ([plant] if with_label else [])) + "\n")
        truth.write(plant + "\n")
PYTHON
}
write_table plants.csv 1200 label
write_table new.csv 200 no-label

block plants.textproto >plants.textproto
grep -q '^name:' plants.textproto || fail "the README shows no job file plants.textproto"

# Runs one command line of the README with a limit of 60 s; wants exit status $2 (default 0).
run() {
  local line=$1 want=${2:-0} status=0
  echo "\$ $line"
  timeout 60 bash -c "$line" >"$work/out" 2>"$work/err" </dev/null || status=$?
  cat "$work/err" "$work/out"
  note "$line"
  [[ $status == "$want" ]] || fail "\"$line\" exited with $status, want $want"
}
note() {
  [[ -n $transcript ]] || return 0
  {
    echo "    \$ $1"
    # The middle of a long run is left out.
    cat "$work/err" "$work/out" | sed -E "s|$work/here/||g; s/^/    /; s/ +\$//" |
      awk '{line[NR] = $0} END {for (i = 1; i <= NR; ++i) if (NR <= 16 || i <= 6 || i > NR - 8) print line[i]
        else if (i == 7) print "    …"}'
    echo
  } >>"$work/page"
}
# Prints the value of a key of a run's summary.
summary() { /usr/bin/python3 -c 'import json, sys; print(json.load(open(sys.argv[1] + "/summary.json"))[sys.argv[2]])' "$1" "$2"; }
expect() { /usr/bin/python3 -c "import sys; sys.exit(not ($1))" || fail "want $1"; }

# --- Train ---
run "$(command_with 'runs/first')"
expect "$(summary runs/first test_accuracy) >= 0.9"
[[ $(summary runs/first epochs) == 20 ]] || fail "runs/first has $(summary runs/first epochs) epochs, want the file's 20"
for file in model.safetensors report.html metrics.jsonl job.textproto; do
  [[ -s runs/first/$file ]] || fail "the run directory has no $file"
done

# --- Override two fields, and compare ---
run "$(command_with 'runs/second --set')"
[[ $(summary runs/second epochs) == 10 ]] || fail "--set training.epochs=10 gave $(summary runs/second epochs) epochs"
[[ $(summary runs/second learning_rate) != $(summary runs/first learning_rate) ]] || grep -q 0.003 runs/second/job.textproto ||
  fail "--set did not change the learning rate"
run "ballast runs"
for name in first second; do grep -q "$name" "$work/out" || fail "ballast runs does not list runs/$name"; done
run "$(command_with 'ballast plot')"
for name in first second; do grep -q "$name" compare.html || fail "compare.html does not show runs/$name"; done

# --- Predict new rows ---
run "$(command_with 'ballast predict')"
right=$(/usr/bin/python3 - <<'PYTHON'
import csv
truth = open("new.csv.truth").read().split()
rows = list(csv.DictReader(open("predictions.csv")))
assert len(rows) == len(truth), (len(rows), len(truth))
print(sum(row["class"] == plant for row, plant in zip(rows, truth)) / len(truth))
PYTHON
) || fail "predictions.csv cannot be read"
expect "$right >= 0.9"

# --- Resume with more epochs and another number of workers ---
run "$(command_with '--resume runs/first')"
[[ $(summary runs/longer epochs) == 30 && $(summary runs/longer workers) == 3 ]] ||
  fail "the resumed run has $(summary runs/longer epochs) epochs and $(summary runs/longer workers) workers, want 30 and 3"
# 80% of 1,200 rows, 30 times.
[[ $(summary runs/longer examples) == 28800 ]] || fail "resumed to $(summary runs/longer examples) examples, want 28800"

# --- Interrupt and resume ---
line=$(command_with 'runs/long ')
echo "\$ $line   (then Ctrl-C)"
# The epochs of the command before must not be taken for this one's.
: >"$work/err"
# A job in its own process group, as a terminal gives it: SIGINT goes to launch alone.
setsid timeout 90 $line >"$work/out" 2>"$work/err" </dev/null &
launched=$!
# Waits for the first epoch, for at most 60 s.
timeout 60 tail --pid="$launched" -n +1 -F "$work/err" 2>/dev/null | grep -q -m 1 'epoch [0-9,]*/[0-9,]* done' ||
  fail "\"$line\" printed no epoch within 60 s"
# The child of setsid and timeout; a machine may lack pkill.
launch=$(grep -ls "^PPid:[[:space:]]*$launched\$" /proc/[0-9]*/status | head -n 1 | cut -d / -f 3) || true
[[ -n $launch ]] || fail "\"$line\" is not running"
kill -INT "$launch"
status=0
wait "$launched" || status=$?
launched=
cat "$work/err" "$work/out"
note "$line"
[[ $status == 130 ]] || fail "after Ctrl-C, \"$line\" exited with $status, want 130"
[[ $(summary runs/long interrupted) == True ]] || fail "runs/long/summary.json does not say that the run was interrupted"
before=$(summary runs/long examples)
run "$(command_with '--resume auto')"
after=$(summary runs/resumed examples)
expect "$before > 0 and $after > $before"
[[ $(find runs -name '*.tmp') == "" ]] || fail "left behind: $(find runs -name '*.tmp')"

if [[ -n $transcript ]]; then
  {
    echo "# A first session"
    echo
    echo "\`tests/newcomer_test.sh --transcript\` wrote this page: the commands of the README's section"
    echo "[Your own data](../../README.md#your-own-data), and what they print."
    echo
    echo "\`plants.csv\` begins like this:"
    echo
    head -n 4 plants.csv | sed 's/^/    /'
    echo
    echo "\`plants.textproto\`:"
    echo
    sed 's/^\(.\)/    \1/' plants.textproto
    echo
    echo "The commands:"
    echo
    cat "$work/page"
  } | cat -s >"$transcript"
fi
echo "passed"
