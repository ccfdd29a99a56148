#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/kubernetes renders without warnings, fits the types of its objects, and agrees with itself, with its chart
# and with examples/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/lint/node_tools.sh
source tests/lint/node_tools.sh
# shellcheck source=tests/lint/kubernetes_tools.sh
source tests/lint/kubernetes_tools.sh
exec /usr/bin/python3 tests/lint/kubernetes/check.py --kubectl "$kubectl" --helm "$helm" \
  --node_modules "$node_tools/node_modules"
