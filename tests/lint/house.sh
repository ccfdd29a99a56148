#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the criteria of the layout of the code with their counts; fails if one is not met.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/rooms.py" criteria
