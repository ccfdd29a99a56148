#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every relative link of a *.md file leads to a file or folder of the tree; #anchors are not looked at.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bad=0
while IFS=: read -r file line match; do
  target=${match#](}
  target=${target%)}
  target=${target%%#*}
  [[ -z $target || $target =~ ^[a-z][a-z0-9+.-]*: ]] && continue
  [[ -e $(dirname "$file")/$target ]] && continue
  echo "$file:$line: link to $target leads nowhere" >&2
  bad=1
done < <(git grep --untracked -noE '\]\([^) ]+\)' -- '*.md')
exit "$bad"
