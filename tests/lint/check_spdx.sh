#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every source file names its licence in its first lines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bad=0
while IFS= read -r -d '' file; do
  mapfile -n 3 lines <"$file"
  [[ ${lines[*]} == *"SPDX-License-Identifier: Apache-2.0"* ]] && continue
  echo "$file: want an SPDX-License-Identifier: Apache-2.0 line at the top" >&2
  bad=1
done < <(git ls-files -z '*.cc' '*.h' '*.cu' '*.cuh' '*.proto' '*.py' '*.sh')
exit "$bad"
