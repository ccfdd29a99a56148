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
grep -Eq '^wheel: .*/ballast-[0-9.]+-py3-none-manylinux_2_36_x86_64\.whl \([0-9.]+ MiB\)$' "$TEST_TMPDIR/out" ||
  fail "wheel.sh printed: $(<"$TEST_TMPDIR/out")"
wheel=$(echo "$TEST_TMPDIR"/dist/*.whl)

/usr/bin/python3 -m venv "$TEST_TMPDIR/venv" || fail "python3 makes no virtual environment"
# pip_installs PYTHON: puts the wheel into the environment of that Python.
pip_installs() {
  "$TEST_TMPDIR/venv/bin/pip" --python "$1" install --no-index --quiet --disable-pip-version-check "$wheel" \
    2>"$TEST_TMPDIR/err" || fail "pip does not install the wheel for $1: $(<"$TEST_TMPDIR/err")"
}
pip_installs "$TEST_TMPDIR/venv/bin/python"

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

# Every library that a file needs is in the wheel, or on every Linux of the wheel's tag.
everywhere='^(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|ld-linux-x86-64)\.so\.'
mkdir unpacked
"$python" -m zipfile -e "$wheel" unpacked
while read -r file; do
  while read -r name; do
    [[ -f unpacked/ballast.libs/$name || $name =~ $everywhere ]] ||
      fail "$file needs $name, which the wheel lacks"
  done < <(readelf --dynamic --wide "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  readelf --version-info --wide "$file" | sed -n 's/.*Name: GLIBC_2\.\([0-9]*\).*/\1/p' | awk '$1 > 36 {exit 1}' ||
    fail "$file needs a libc above 2.36"
  ! readelf --dyn-syms --wide "$file" | grep -q ' UNIQUE ' || fail "$file has symbols that are unique in a process"
done < <(find unpacked/ballast.libs unpacked/ballast/bin unpacked/ballast/libballast.so -type f)

# The oldest and the newest of the machine's other Pythons, beside Debian's above.
cat >use.py <<'PYTHON'
import ballast
assert "venv" in ballast.__file__, ballast.__file__
try:
    ballast.connect("nowhere", job="wheel")
except ballast.InvalidArgument as error:
    print(error)
PYTHON
home=$(getent passwd "$EUID" | cut -d: -f6)
mapfile -t others < <(for other in "$home"/.pyenv/versions/3.*/bin/python3; do
  "$other" -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null && echo "$other"
done | sort --version-sort | sed -n '1p;$p' | uniq)
# works_in PYTHON
works_in() {
  "$1" use.py >out 2>&1 || true
  [[ $(<out) == 'cannot connect to "nowhere"'* ]] || fail "$1: $(<out)"
  echo "works with $("$1" --version)"
}
works_in "$python"
for other in "${others[@]}"; do
  rm -rf other_venv
  "$other" -m pip install --no-index --quiet --disable-pip-version-check --target other_venv/lib "$wheel" 2>err ||
    fail "pip of $other does not install the wheel: $(<err)"
  PYTHONPATH=other_venv/lib works_in "$other"
done

# Beside other copies of gRPC and protobuf, whichever is loaded first, with servers of the wheel.
/usr/bin/python3 -m venv --without-pip --system-site-packages "$TEST_TMPDIR/shared_venv"
pip_installs "$TEST_TMPDIR/shared_venv/bin/python"
if shared_venv/bin/python -c 'import torch, grpc, google.protobuf.message' 2>/dev/null; then
  cat >beside.py <<'PYTHON'
import os
import sys
for name in os.environ["ORDER"].split():
    __import__(name)
import ballast, grpc, torch
from google.protobuf.struct_pb2 import Struct
assert "venv" in ballast.__file__, ballast.__file__
with ballast.connect() as ps:
    w = torch.zeros(4)
    ps.declare({"w": w}, optimizer=ballast.SGD(1.0))
    ps.push_pull({"w": torch.ones(4)}, into={"w": w}).result(60)
    assert w.tolist() == [-1.0] * 4, w
message = Struct()
message.update({"a": 1})
assert Struct.FromString(message.SerializeToString()) == message
with grpc.insecure_channel("127.0.0.1:1") as channel:
    try:
        channel.unary_unary("/a/b")(b"", timeout=2)
    except grpc.RpcError as error:
        print(error.code())
PYTHON
  for order in "ballast torch grpc" "torch grpc ballast" "grpc ballast torch"; do
    ORDER=$order PATH=$TEST_TMPDIR/shared_venv/bin:$PATH shared_venv/bin/ballast run -- python beside.py >out 2>&1 ||
      fail "imports in the order $order: $(<out)"
  done
else
  echo "SKIPPED: imports beside torch and grpc, which /usr/bin/python3 lacks"
fi
echo "passed"
