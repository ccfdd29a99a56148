#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two workspaces outside the tree depend on @ballast: a program on //client compiles against its headers, and both it and
# the copied example of a custom layer find all that they need. installed_test links and runs the same programs.
#
# Usage: workspace_test.sh INSTALL_SH (a file of the tree, whose real path leads to it)
set -euo pipefail
# shellcheck source=tests/outside/server.sh
source tests/outside/server.sh

tree=$(dirname "$(dirname "$(readlink -f "$1")")")
[[ -f $tree/WORKSPACE ]] || fail "$tree is not the tree"
# Bazel keeps the cache of what was built there.
HOME=${HOME:-$(getent passwd "$EUID" | cut -d: -f6)}
export HOME

# outside COMMAND...: that Bazel command in the current workspace, with a server and an output folder of its own.
outside() {
  bazel --output_base="$TEST_TMPDIR/output" --max_idle_secs=60 "$@" --noshow_progress >"$TEST_TMPDIR/bazel.log" 2>&1 ||
    { cat "$TEST_TMPDIR/bazel.log" >&2; fail "bazel $*"; }
}
stop() {
  bazel --output_base="$TEST_TMPDIR/output" shutdown 2>/dev/null || true
}
trap stop EXIT

# Makes a workspace as docs/guide/programs.md says.
mkdir -p "$TEST_TMPDIR/program"
cd "$TEST_TMPDIR/program"
cp "$tree/examples/client_example.cc" program.cc
cat >WORKSPACE <<WORKSPACE
BALLAST = "$tree"

local_repository(
    name = "ballast",
    path = BALLAST,
)

load("@ballast//bazel:workspace.bzl", "ballast_workspace")

ballast_workspace(BALLAST)
WORKSPACE
echo "import $tree/.bazelrc" >.bazelrc
cat >BUILD.bazel <<'BUILD'
cc_binary(
    name = "program",
    srcs = ["program.cc"],
    deps = ["@ballast//client"],
)
BUILD
# Building the whole client takes minutes, so only the program's own file is compiled.
outside build --output_groups=compilation_outputs //:program
[[ -f bazel-bin/_objs/program/program.o ]] || fail "program.cc is not compiled: $(find bazel-bin/ | head -20)"
outside build --nobuild //:program

cp -R "$tree/examples/custom_layer" "$TEST_TMPDIR/custom_layer"
cd "$TEST_TMPDIR/custom_layer"
sed -i "s|^BALLAST = .*|BALLAST = \"$tree\"|" WORKSPACE
sed -i "s|^import .*|import $tree/.bazelrc|" .bazelrc
outside build --nobuild //:ballast_worker //:silu_test
echo "passed"
