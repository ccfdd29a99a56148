#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/wheel.sh packs a wheel that pip installs offline into a fresh virtual environment, where the package, its library
# and the programs work.
set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

/usr/bin/python3 -m venv --help >/dev/null 2>&1 && /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || {
  echo "SKIPPED: /usr/bin/python3 has no venv (Debian's python3-venv)"
  exit 0
}
deploy/wheel.sh --built . --out "$TEST_TMPDIR/dist" >"$TEST_TMPDIR/out" 2>"$TEST_TMPDIR/err" ||
  fail "wheel.sh: $(<"$TEST_TMPDIR/err")"
grep -Eq '^wheel: .*/ballast-[0-9.]+-py3-none-(many)?linux.*_x86_64\.whl \([0-9.]+ MiB\)$' "$TEST_TMPDIR/out" ||
  fail "wheel.sh printed: $(<"$TEST_TMPDIR/out")"
/usr/bin/python3 -m venv "$TEST_TMPDIR/venv"
"$TEST_TMPDIR/venv/bin/pip" install --no-index --quiet --disable-pip-version-check "$TEST_TMPDIR"/dist/*.whl ||
  fail "pip does not install the wheel"

# Nothing below may come from the tree.
cd "$TEST_TMPDIR"
python=$TEST_TMPDIR/venv/bin/python
version=$("$python" -c 'import ballast; print(ballast.__version__)')
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "the version is \"$version\""
[[ $("$python" -m ballast --version) == "ballast $version"* ]] || fail "$("$python" -m ballast --version)"
[[ $(venv/bin/ballast --version) == "ballast $version"* ]] || fail "the command ballast does not run"

for ((i = 0; i < 100; i++)); do echo "$((i % 2 * 2 - 1)).$((i % 7)),$((i % 2))"; done >data.csv
cat >job.textproto <<'JOB'
name: "wheel"
data { train { csv { path: "data.csv" label_column: -1 } } test { csv { path: "data.csv" label_column: -1 } } }
model { layers { dense { units: 2 } } loss { softmax_cross_entropy {} } }
training { epochs: 5 batch_size: 10 }
optimizer { sgd { learning_rate: 0.2 } }
JOB
"$python" -m ballast launch job.textproto --run_dir run >out 2>&1 || fail "launch: $(<out)"
grep -q 'test accuracy: 1' out || fail "launch: $(<out)"
status=0
(cd / && "$python" -m ballast nonsense >/dev/null 2>&1) || status=$?
[[ $status == 2 ]] || fail "an unknown command ended with $status, want 2"
echo "passed"
