// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/concurrency/clock.h"
#include "common/trace/call_timeline.h"

namespace ballast {

// Owns what a server does with calls whose clients trace them: records the sampled ones, and logs those that fail, so
// that a person who has the trace's id finds them. Invariant: logs at most one line per kLogInterval, whatever clients
// do. Thread safety: all methods may be called from any thread.
class CallTracing {
 public:
  static constexpr absl::Duration kLogInterval = absl::Milliseconds(100);

  // `calls` and `clock` outlive this; null `calls`: nothing is recorded. `log` gets lines; empty: nothing is logged.
  CallTracing(CallTimeline* calls, std::function<void(const std::string&)> log, Clock* clock = Clock::Real())
      : calls_(calls), log_(std::move(log)), clock_(*clock) {}

  // Returns whether a call that this context names is to be recorded.
  bool Records(const TraceContext& context) const { return calls_ != nullptr && context.sampled; }

  // Records a call that has ended, if it is to be recorded. Without this the call need not have times.
  void Add(CallSpan call) {
    if (Records(call.context)) calls_->Add(std::move(call));
  }

  // Logs that a call failed, and why; `peer` is the client's address.
  void LogFailure(const CallSpan& call, const std::string& peer, const absl::Status& why);

 private:
  CallTimeline* const calls_;
  const std::function<void(const std::string&)> log_;
  Clock& clock_;
  absl::Mutex mutex_;
  absl::Time next_log_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Failures since the last line.
  uint64_t unlogged_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ballast
