#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# proto/ follows buf's standard rules.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/lint/node_tools.sh
source tests/lint/node_tools.sh
exec "$node_tools/node_modules/.bin/buf" lint
