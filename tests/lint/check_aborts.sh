#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Code that handles input from peers and disks ends the process, or ignores a failure, only where tests/lint/aborts.txt
# says why no input can cause harm there: RPC, wire format, codecs, shared memory and storage.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folders=(server common client)
table=tests/lint/aborts.txt

# Ends the process: abort, CHECK, LOG(FATAL), assert, terminate, traps; exceptions, which nobody catches: throw, .at(),
# std::get of a variant, std::stoi. Takes a value without asking if there is one: .value(), *Call(…), *Call(…)->.
# Ignores a failure: IgnoreError, a cast to void.
pattern='(^|[^[:alnum:]_])((abort|terminate|assert|__builtin_trap|__builtin_unreachable)\(|D?CHECK(_[A-Z]+)?\(|LOG\((DFATAL|FATAL)\)|throw[ ;]|std::get<|std::sto[a-z]+\()'
pattern+='|\.IgnoreError\(|static_cast<void>\(|\(void\) ?[[:alpha:]_]|[])[:alnum:]_]\.at\([^)]|\.value\(\)'
pattern+='|(^|[=(,]|return) ?\*\(?[[:alpha:]_][[:alnum:]_.>:-]*\([^;]*\)(;|->)'

# path:line:text, without comments, tests, and values that are fields of messages.
found=$(git ls-files -z -- "${folders[@]/%//*.cc}" "${folders[@]/%//*.h}" |
  grep -zvE '_test\.cc$|/testing/' | xargs -0 grep -nHE "$pattern" |
  grep -vE '^[^:]+:[0-9]+: *//|\*std::move\(|static_assert|[*.>]mutable_[a-z_]+\(\)|descriptor\(\)|std::launder' || true)

declare -A used=()
bad=0
while IFS= read -r hit; do
  [[ -n $hit ]] || continue
  path=${hit%%:*}
  text=${hit#*:*:}
  known=0
  while IFS='|' read -r file code reason; do
    if [[ $file == "$path" && $text == *"$code"* && -n $reason ]]; then
      known=1
      used["$file|$code"]=1
    fi
  done < <(sed 's/ *| */|/g' <(grep -vE '^(#|$)' "$table"))
  if ((known == 0)); then
    echo "$hit" >&2
    bad=1
  fi
done <<<"$found"
((bad == 0)) || echo "the lines above can end the process or ignore a failure: return a Status, or say in $table why no input can reach them" >&2
while IFS='|' read -r file code _; do
  [[ -z ${used["$file|$code"]-} ]] || continue
  echo "$table: $file has no such line: $code" >&2
  bad=1
done < <(sed 's/ *| */|/g' <(grep -vE '^(#|$)' "$table"))
exit "$bad"
