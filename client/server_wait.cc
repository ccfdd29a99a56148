// SPDX-License-Identifier: Apache-2.0
#include "client/server_wait.h"

#include <algorithm>
#include <optional>

#include "absl/time/clock.h"

namespace ballast {
namespace {

// Interval at which a wait checks for an interruption, and the time until an interrupted wait ends.
constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
constexpr absl::Duration kInterruptTimeout = absl::Seconds(1);

}  // namespace

absl::StatusOr<absl::Duration> ServerWait::Await(absl::FunctionRef<bool(absl::Duration)> ready,
                                                 absl::string_view what) {
  if (ready(absl::ZeroDuration())) return absl::ZeroDuration();
  const TimelineScope span(options_.timeline, TimelineRow::kWait, "wait for", what);
  const absl::Time start = absl::Now();
  absl::Time deadline = absl::InfiniteFuture();
  absl::Duration helped;
  while (!AwaitOnce(ready, helped)) {
    if (options_.interrupted->load()) deadline = std::min(deadline, absl::Now() + kInterruptTimeout);
    if (absl::Now() > deadline) return absl::CancelledError("interrupted while waiting for servers");
  }
  return absl::Now() - start - helped;
}

bool ServerWait::AwaitOnce(absl::FunctionRef<bool(absl::Duration)> ready, absl::Duration& helped) {
  bool is_ready = false;
  const std::optional<absl::Duration> spent =
      options_.helps ? client_->Help([&] { return is_ready = ready(absl::ZeroDuration()); }, kPollInterval)
                     : std::nullopt;
  if (!spent.has_value()) return ready(kPollInterval);
  helped += *spent;
  return is_ready;
}

}  // namespace ballast
