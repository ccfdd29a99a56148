#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints and installs the missing Debian packages. Does nothing if none is missing.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: deploy/setup.sh [--test]

Installs the Debian packages of deploy/packages.txt that this machine lacks.
  --test   also installs those of deploy/packages-test.txt
  --help   prints this text
USAGE
}

fail() {
  echo "error: $*" >&2
  exit 1
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lists=("$here/packages.txt")
case "${1:-}" in
  "") ;;
  --test) lists+=("$here/packages-test.txt") ;;
  --help | -h) usage; exit 0 ;;
  *) usage >&2; echo "error: unknown argument $1" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  fail "Ballast builds from Debian 12's packages, and this machine has no apt-get;" \
    "in a container, start from debian:12 (deploy/Containerfile shows how)"
fi

installed() {
  # "hold ok installed", "install ok installed"; a removed package keeps an entry, too.
  [[ $(dpkg-query --show --showformat '${db:Status-Status}' "$1" 2>/dev/null || true) == installed ]]
}

missing=()
while read -r package stand_in _; do
  [[ -z $package || $package == \#* ]] && continue
  installed "$package" && continue
  [[ -n $stand_in ]] && command -v "$stand_in" >/dev/null && continue
  missing+=("$package")
done < <(cat "${lists[@]}")

if ((${#missing[@]} == 0)); then
  echo "setup: nothing to install"
  exit 0
fi
echo "setup: missing Debian packages: ${missing[*]}"

as_root=()
if ((EUID != 0)); then
  as_root=(sudo)
fi
install=(apt-get install --yes --no-install-recommends "${missing[@]}")
by_hand="run as root: apt-get update && ${install[*]}"
if ((EUID != 0)) && ! command -v sudo >/dev/null; then
  fail "not root and sudo is not installed; $by_hand"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Without a terminal nobody can type a password: sudo then fails at once instead of waiting.
[[ -t 0 || ${#as_root[@]} -eq 0 ]] || as_root+=(--non-interactive)
quietly() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "$@" >"$log" 2>&1 </dev/null && return
  tail -n 20 "$log" >&2
  fail "apt-get failed, see its output above; $by_hand"
}
echo "setup: installing ${#missing[@]} packages (takes minutes the first time)"
if [[ -t 0 && ${#as_root[@]} -gt 0 ]]; then
  sudo --validate || fail "sudo was denied; $by_hand"
fi
quietly apt-get update
quietly "${install[@]}"

for package in "${missing[@]}"; do
  installed "$package" || fail "$package is still not installed; $by_hand"
done
echo "setup: installed ${#missing[@]} packages"
