// SPDX-License-Identifier: Apache-2.0
#include "cli/command/checkpoint_request.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/member_loop.h"

namespace ballast {
namespace {

constexpr absl::Duration kCallTimeout = absl::Milliseconds(300);
// Pause between two calls.
constexpr absl::Duration kPause = absl::Milliseconds(50);

}  // namespace

absl::StatusOr<v1::SaveCheckpointResponse> RequestCheckpoint(ProgressSource& source, bool stop, absl::Duration timeout,
                                                             absl::FunctionRef<bool(absl::Duration)> wait) {
  const absl::Time deadline = absl::Now() + timeout;
  v1::SaveCheckpointRequest request;
  request.set_stop(stop);
  while (true) {
    absl::StatusOr<v1::SaveCheckpointResponse> response = source.SaveCheckpoint(request, kCallTimeout);
    if (!response.ok()) {
      if (!IsUnresponsive(response.status()) || absl::Now() >= deadline) return response.status();
    } else if (!response->pending()) {
      if (response->failure().empty()) return response;
      return absl::FailedPreconditionError(response->failure());
    } else if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("timed out after ", absl::FormatDuration(timeout), " waiting for ", response->waiting_for()));
    } else {
      request.set_id(response->id());
    }
    if (!wait(kPause)) return absl::CancelledError("interrupted");
  }
}

}  // namespace ballast
