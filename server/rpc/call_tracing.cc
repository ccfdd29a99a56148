// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/call_tracing.h"

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace ballast {

void CallTracing::LogFailure(const CallSpan& call, const std::string& peer, const absl::Status& why) {
  if (!log_) return;
  uint64_t unlogged = 0;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_.Now();
    if (now < next_log_) {
      ++unlogged_;
      return;
    }
    next_log_ = now + kLogInterval;
    std::swap(unlogged, unlogged_);
  }
  log_(absl::StrCat(absl::StripPrefix(call.method, "/ballast.v1."), " from ", peer,
                    " failed: ", absl::StatusCodeToString(why.code()), ": ", absl::CHexEscape(why.message()),
                    "; trace ", call.context.TraceId(), ", span ", SpanIdText(call.context.span), ", of span ",
                    SpanIdText(call.parent), unlogged > 0 ? absl::StrCat("; ", unlogged, " failures before it") : ""));
}

}  // namespace ballast
