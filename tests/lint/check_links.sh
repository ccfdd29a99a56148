#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every relative link of a *.md file leads to a file or folder of the tree, and its #anchor to a heading of that page.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bad=0

# Prints the anchors of a page's headings, as GitHub makes them.
anchors() { sed -nE 's/^#+ //p' "$1" | tr '[:upper:]' '[:lower:]' | sed -E 's/[^a-z0-9_ -]//g; s/ /-/g'; }

while IFS=: read -r file line match; do
  target=${match#](}
  target=${target%)}
  [[ $target =~ ^[a-z][a-z0-9+.-]*: ]] && continue
  page=$(dirname "$file")/${target%%#*}
  [[ $target == \#* ]] && page=$file
  if [[ -e $page ]]; then
    [[ $target != *.md#* && $target != \#* ]] && continue
    anchors "$page" | grep -qxF -- "${target#*#}" && continue
  fi
  echo "$file:$line: link to $target leads nowhere" >&2
  bad=1
done < <(git grep --untracked -noE '\]\([^) ]+\)' -- '*.md')
exit "$bad"
