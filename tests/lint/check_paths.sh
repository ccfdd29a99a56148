#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# No path of one person's machine, and no lock file with a registry's addresses, is committed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bad=0
# The class keeps this file from matching itself.
if git grep -nIE '(^|[^[:alnum:]_.$})-])/(wor[k]|far[m]|hom[e]/[a-z])/' -- . ':!LICENSE' >&2; then
  echo "the lines above hold a path of one machine" >&2
  bad=1
fi
if git ls-files | grep -E '(^|/)(package-lock\.json|npm-shrinkwrap\.json|\.npmrc)$' >&2; then
  echo "the files above hold a registry's addresses" >&2
  bad=1
fi
exit "$bad"
