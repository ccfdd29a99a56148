#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Failures that callers tell apart carry a reason: common/status/error_reason.h. A status code alone says too little where ten
# different things have it, and a status that is built anew from another one's code loses the reason. Each reason is in
# the table of docs/protocol/wire_protocol.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bad=0
for reason in $(sed -n 's/^  ERROR_REASON_\([A-Z_]*\) = [1-9].*/\1/p' proto/ballast/v1/error.proto); do
  grep -q "^| \`$reason\` |" docs/protocol/wire_protocol.md && continue
  echo "docs/protocol/wire_protocol.md: want a line for the reason $reason in its table" >&2
  bad=1
done
# A refusal by these files ends a program before it serves, or a connection, without a word: nobody can branch on it.
own='^(common/run/|common/security/|common/program/network_link\.cc|common/rpc/connection_gate\.cc|server/rpc/port/http2_inspector\.cc)'
git ls-files 'server/*.cc' 'server/*.h' 'client/*.cc' 'client/*.h' 'common/*.cc' 'common/*.h' |
  grep -vE '(_test\.cc|/testing/)|^common/status/error_reason\.cc|^common/rpc/grpc_status\.cc' | grep -vE "$own" |
  xargs perl -0777 -ne '
    sub complain { my ($at, $what) = @_; my $line = 1 + (substr($_, 0, $at) =~ tr/\n//);
                   print STDERR "$ARGV:$line: $what\n"; $bad = 1; }
    while (/absl::(?:FailedPrecondition|Aborted|Unavailable|AlreadyExists|ResourceExhausted|DeadlineExceeded)Error\(/g) {
      my $at = $-[0];
      complain($at, "want WithReason(v1::ERROR_REASON_..., ...) around it")
          unless substr($_, 0, $at) =~ /With(?:Reason|JobFailure)\([^;{}]*$/;
    }
    while (/absl::Status\(\s*[\w.>()-]*code\(\)/g) { complain($-[0], "want Annotate or WithMessage, which keep the reason"); }
    END { exit($bad ? 1 : 0); }' || bad=1
exit "$bad"
