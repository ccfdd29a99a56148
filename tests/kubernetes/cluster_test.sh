#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The cheapest cases of faults.sh, with the programs that Bazel has built; the others are run by hand. Without root or
# namespaces it passes and prints SKIPPED.
#
# Usage: cluster_test.sh FAULTS_SH BALLAST SERVER WORKER
set -euo pipefail
export HOME="${HOME:-$(getent passwd "$EUID" | cut -d: -f6)}"
# The tree on disk: the manifests, and kubectl in the cache that tests/lint fills.
exec "$(realpath "$1")" --ballast "$2" --server "$3" --worker "$4" \
  test_an_evicted_server_of_a_jobset_exits_with_143_and_is_replaced \
  test_a_server_with_less_memory_than_it_may_use_does_not_start
