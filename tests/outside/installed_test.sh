#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/install.sh installs programs that run, and what a program on the client and a worker with a layer of one's own
# are built from without Bazel; both then train. A second installation and --uninstall leave nothing behind.
set -euo pipefail
# shellcheck source=tests/outside/server.sh
source tests/outside/server.sh
trap kill_server EXIT

prefix=$TEST_TMPDIR/prefix
job=$TEST_TMPDIR/job

install_ballast() {
  deploy/install.sh --built . --prefix "$prefix" >"$TEST_TMPDIR/out" 2>"$TEST_TMPDIR/err"
}

# expect_error STATUS TEXT ARGUMENT...: install.sh fails with that exit status, and its errors contain the text.
expect_error() {
  local want=$1 text=$2 status=0
  shift 2
  deploy/install.sh "$@" >"$TEST_TMPDIR/out" 2>"$TEST_TMPDIR/err" || status=$?
  [[ $status == "$want" ]] || fail "install.sh $*: exit status $status, want $want: $(<"$TEST_TMPDIR/err")"
  [[ $(<"$TEST_TMPDIR/err") == *"$text"* ]] || fail "install.sh $*: got $(<"$TEST_TMPDIR/err"), want $text"
}

# Two classes that the sign of the first number tells apart.
write_job() {
  mkdir -p "$job"
  for ((i = 0; i < 200; i++)); do echo "$((i % 2 * 2 - 1)).$((i % 7)),0.$((i % 5)),$((i % 2))"; done >"$job/data.csv"
  cat >"$job/$1.textproto" <<JOB
name: "$1"
data {
  train { csv { path: "data.csv" label_column: -1 } }
  test { csv { path: "data.csv" label_column: -1 } }
}
model {
  layers { dense { units: 8 } }
  layers { $2 }
  layers { dense { units: 2 } }
  loss { softmax_cross_entropy {} }
}
training { epochs: 5 batch_size: 10 }
optimizer { sgd { learning_rate: 0.2 } }
JOB
}

expect_trained() {
  local accuracy
  accuracy=$(sed -n 's/.*"test_accuracy": *\([0-9.]*\).*/\1/p' "$TEST_TMPDIR/summary")
  [[ $accuracy == 1 || $accuracy == 1.0 || $accuracy == 0.99* ]] ||
    fail "$1: test accuracy \"$accuracy\", want 1: $(<"$TEST_TMPDIR/summary")"
}

mkdir -p "$prefix/empty"
install_ballast || fail "install.sh: $(<"$TEST_TMPDIR/err")"
grep -q "add it with: export PATH=\"$prefix/bin:\\\$PATH\"" "$TEST_TMPDIR/out" || fail "PATH: $(<"$TEST_TMPDIR/out")"
export PATH=$prefix/bin:$PATH PKG_CONFIG_PATH=$prefix/lib/pkgconfig
# Nothing below may come from the tree.
tree=$PWD
cd "$TEST_TMPDIR"

write_job plain "relu {}"
ballast launch "$job/plain.textproto" --json --run-dir "$TEST_TMPDIR/plain" >summary 2>log || fail "launch: $(<log)"
expect_trained plain

# shellcheck disable=SC2046
g++ -std=c++20 "$prefix/share/doc/ballast/examples/client_example.cc" $(pkg-config --cflags --libs ballast_client) \
  -o client_example || fail "the client example does not build"
expect_client_trains ./client_example ballast_server

# shellcheck disable=SC2046
g++ -std=c++20 -O2 "$prefix/share/doc/ballast/examples/custom_layer/silu.cc" \
  $(pkg-config --cflags --libs ballast_worker) -o my_worker || fail "the worker with a layer does not build"
write_job custom 'custom { type: "silu" numbers { key: "beta" value: 1.5 } }'
BALLAST_WORKER_BINARY=$PWD/my_worker ballast launch "$job/custom.textproto" --json --run-dir "$TEST_TMPDIR/custom" \
  >summary 2>log || fail "launch with a layer of one's own: $(<log)"
expect_trained custom

# A file that a former version installed goes away with the next installation; a file of somebody else stays.
cd "$tree"
echo share/ballast/former >>"$prefix/share/ballast/installed"
touch "$prefix/share/ballast/former" "$prefix/include/ballast/foreign.h"
install_ballast || fail "a second installation: $(<"$TEST_TMPDIR/err")"
[[ ! -e $prefix/share/ballast/former ]] || fail "a second installation leaves a file of the first"
deploy/install.sh --uninstall --prefix "$prefix" >/dev/null || fail "--uninstall"
left=$(cd "$prefix" && find . -mindepth 1 | sort | xargs)
[[ $left == "./empty ./include ./include/ballast ./include/ballast/foreign.h" ]] ||
  fail "--uninstall leaves $left, want the folder that was there before and the file of somebody else"

deploy/install.sh --built . --prefix /opt/ballast --destdir "$TEST_TMPDIR/package" >/dev/null
grep -q '^prefix=/opt/ballast$' "$TEST_TMPDIR/package/opt/ballast/lib/pkgconfig/ballast_client.pc" || fail "--destdir"

expect_error 1 "nothing is installed in $prefix" --uninstall --prefix "$prefix"
expect_error 1 "not a directory that you may write to" --built . --prefix "$prefix/include/ballast/foreign.h/x"
expect_error 1 "/cli/ballast does not exist: it was not built" --built "$TEST_TMPDIR/nothing" --prefix "$prefix"
expect_error 2 "want a directory without spaces in its name" --built . --prefix "$TEST_TMPDIR/a b"
expect_error 2 "--prefix: got \"\", want a directory" --prefix
expect_error 2 "unknown argument --prefx" --prefx /opt
echo ../../outside >"$TEST_TMPDIR/outside"
mkdir -p "$prefix/share/ballast"
echo ../outside >"$prefix/share/ballast/installed"
expect_error 1 "got \"../outside\", want a path below the prefix" --uninstall --prefix "$prefix"
[[ -e $TEST_TMPDIR/outside ]] || fail "--uninstall removed a file outside the prefix"
deploy/install.sh --help | grep -q '^Usage: deploy/install.sh' || fail "--help"
echo "passed"
