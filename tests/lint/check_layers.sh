#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Includes follow the order of the rooms (tests/lint/rooms.py), no two rooms include each other, and the picture of them in
# docs/design/architecture.md is up to date.
set -euo pipefail
rooms="$(dirname "${BASH_SOURCE[0]}")/rooms.py"
"$rooms" layers
"$rooms" picture --check
