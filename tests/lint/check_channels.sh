#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every channel is opened by common/rpc/channel.cc: one that is opened elsewhere would find a server that has moved late, or
# show no token. Tests may be strangers, and the benchmark's stub peer is meant to be one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

found=$(git grep -nE '\b(Create(Custom)?Channel|CreateCustomChannelWithInterceptors|CreateInsecureChannelFromFd|InProcessChannel(WithInterceptors)?|ChannelArguments)\b *[({a-z]|Credentials\(\)\.ForChannel|\bForChannel\(\)' \
  -- '*.cc' '*.h' ':!common/rpc/channel.cc' ':!common/rpc/credentials.*' ':!tests' ':!bench/peers/stub_peer.cc' ':!*_test.cc' || true)
[[ -z $found ]] && exit 0
echo "$found" >&2
echo "open channels with OpenChannel or OpenInProcessChannel (common/rpc/channel.h)" >&2
exit 1
