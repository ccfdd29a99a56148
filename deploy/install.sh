#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the programs, and what programs on the client and workers with own layers are built from.
set -euo pipefail
export LC_ALL=C

usage() {
  cat <<'USAGE'
Usage: deploy/install.sh [--prefix DIR] [--destdir DIR] [--built DIR]
       deploy/install.sh --uninstall [--prefix DIR] [--destdir DIR]

Builds Ballast and installs it under a prefix:
  bin/                         ballast, ballast_server, ballast_worker, ballast_bench
  include/ballast/, lib/       headers and libraries for your own programs (docs/guide/programs.md)
  share/                       protos, documentation, examples, shell completion
A second installation replaces the first one.
  --prefix DIR   where the files belong (default: /usr/local)
  --destdir DIR  where to put that prefix, for a package; "" if left out
  --built DIR    installs what is built there (such as bazel-bin) and builds nothing, for example as root
  --uninstall    removes what was installed
  --help         prints this text
USAGE
}

fail() {
  echo "error: $*" >&2
  exit "${status:-1}"
}

prefix=/usr/local
destdir=
built=
uninstall=
while (($# > 0)); do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --uninstall) uninstall=yes; shift ;;
    --prefix=* | --destdir=* | --built=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
    --prefix | --destdir | --built)
      [[ -n ${2-} && ${2-} != -* ]] || status=2 fail "$1: got \"${2-}\", want a directory"
      printf -v "${1#--}" %s "$(realpath -m -- "$2")"
      shift 2
      ;;
    *) usage >&2; status=2 fail "unknown argument $1" ;;
  esac
done
# pkg-config separates flags by spaces.
[[ $prefix != *[[:space:]]* ]] || status=2 fail "--prefix: got \"$prefix\", want a directory without spaces in its name"
[[ -z $uninstall || -z $built ]] || status=2 fail "--built: does not go with --uninstall"
root=$destdir$prefix
manifest=share/ballast/installed

# Removes the files that a manifest lists, and the folders (which end in a slash) if nothing else is in them.
remove() {
  local file
  # Folders after what is in them.
  while IFS= read -r file; do
    [[ $file != /* && $file != *..* ]] || fail "$root/$manifest: got \"$file\", want a path below the prefix"
    if [[ $file == */ ]]; then
      rmdir -- "$(realpath -m -- "$root/$file")" 2>/dev/null || true
    else
      rm -f -- "$root/$file"
    fi
  done < <(sort -r "$1")
}

[[ -e $root || -z $uninstall ]] || fail "nothing is installed in $root"
parent=$root
while [[ ! -e $parent ]]; do parent=$(dirname "$parent"); done
[[ -d $parent && -w $parent ]] || fail "$parent: not a directory that you may write to; want another --prefix" \
  "(such as ~/.local), or build first and then run: sudo deploy/install.sh --built bazel-bin"

if [[ -n $uninstall ]]; then
  [[ -f $root/$manifest ]] || fail "nothing is installed in $root: there is no $root/$manifest"
  list=$(mktemp)
  trap 'rm -f "$list"' EXIT
  cp -- "$root/$manifest" "$list"
  remove "$list"
  echo "install: removed Ballast from $root"
  exit 0
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z $built ]]; then
  deploy/setup.sh
  echo "install: building (takes several minutes the first time)"
  bazel build //server:ballast_server //worker:ballast_worker //cli:ballast //bench:ballast_bench \
    //deploy:ballast_client //deploy:ballast_worker
  built=bazel-bin
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Files to install: modes, source files, and paths below the prefix.
modes=() sources=() targets=()
add() {
  [[ -f $2 ]] || fail "$2 does not exist: it was not built"
  modes+=("$1") sources+=("$2") targets+=("$3")
}

add 755 "$built/cli/ballast" bin/ballast
add 755 "$built/server/ballast_server" bin/ballast_server
add 755 "$built/worker/ballast_worker" bin/ballast_worker
add 755 "$built/bench/ballast_bench" bin/ballast_bench

# A header's closure is what the compiler reads for it, without the headers of Debian's packages.
headers=$(g++ -std=c++20 -MM -I. "-I$built/proto" -xc++ client/client.h worker/model/layers/custom_layer.h |
  tr -s ' \\' '\n\n' | grep -E '\.h$' | sort -u)
while read -r header; do
  add 644 "$header" "include/ballast/${header#"$built/proto/"}"
done <<<"$headers"

read -r _ version _ < <("$built/cli/ballast" --version)
for library in ballast_client ballast_worker; do
  archive=$built/deploy/lib$library.a
  [[ -f $archive && -f $built/deploy/$library.flags ]] || fail "$archive does not exist: it was not built"
  strip --strip-debug -o "$work/lib$library.a" "$archive"
  cat >"$work/$library.pc" <<PC
prefix=$prefix
Name: $library
Description: $([[ $library == ballast_client ]] && echo "Client of parameter servers" || echo "Worker, for layers of one's own")
URL: $prefix/share/doc/ballast/README.md
Version: $version
Cflags: -I\${prefix}/include/ballast
Libs: -L\${prefix}/lib -l$library $(<"$built/deploy/$library.flags")
PC
  add 644 "$work/lib$library.a" "lib/lib$library.a"
  add 644 "$work/$library.pc" "lib/pkgconfig/$library.pc"
done

for proto in proto/ballast/v1/*.proto; do
  add 644 "$proto" "share/ballast/$proto"
done
for file in README.md CHANGELOG.md LICENSE docs/guide/*.md examples/*.textproto examples/client_example.cc \
  examples/flights/convert.mjs \
  examples/custom_layer/*.cc examples/custom_layer/job.textproto; do
  add 644 "$file" "share/doc/ballast/$file"
done
if "$built/cli/ballast" completion bash >"$work/completion" 2>"$work/errors"; then
  add 644 "$work/completion" share/bash-completion/completions/ballast
fi

# The manifest comes first, so that an installation that was cut short can be removed; it still lists an older one's
# files, which are removed at the end.
{
  printf '%s\n' "${targets[@]}" "$manifest"
  # Folders that an installation makes, this one or the one before.
  [[ -d $root ]] || echo ./
  for target in "${targets[@]}"; do
    while target=$(dirname "$target"); [[ $target != . ]]; do [[ -d $root/$target ]] || echo "$target/"; done
  done
  if [[ -f $root/$manifest ]]; then grep '/$' "$root/$manifest" || true; fi
} | sort -u >"$work/new"
sort -u "$work/new" "$root/$manifest" >"$work/both" 2>/dev/null || cp "$work/new" "$work/both"
install -D -m 644 "$work/both" "$root/$manifest"
for ((i = 0; i < ${#targets[@]}; i++)); do
  install -D -m "${modes[i]}" -- "${sources[i]}" "$root/${targets[i]}"
done
comm -13 "$work/new" "$work/both" >"$work/old"
grep '/$' "$work/new" >>"$work/old" || true
remove "$work/old"
install -m 644 "$work/new" "$root/$manifest"

echo "install: installed ${#targets[@]} files in $root"
[[ -n $destdir || :$PATH: == *:$prefix/bin:* ]] ||
  echo "install: $prefix/bin is not on PATH; add it with: export PATH=\"$prefix/bin:\$PATH\""
case :$(pkg-config --variable pc_path pkg-config 2>/dev/null):${PKG_CONFIG_PATH-}: in
  *:$prefix/lib/pkgconfig:*) ;;
  *) [[ -n $destdir ]] ||
    echo "install: pkg-config does not look there; add it with: export PKG_CONFIG_PATH=$prefix/lib/pkgconfig" ;;
esac
