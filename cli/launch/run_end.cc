// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/run_end.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/member_loop.h"

namespace ballast {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(90);
constexpr absl::Duration kCallTimeout = absl::Milliseconds(300);
// Pause between two calls.
constexpr absl::Duration kPause = absl::Milliseconds(50);

}  // namespace

std::string SaveCheckpoint(ProgressSource& source, absl::FunctionRef<bool(absl::Duration)> wait) {
  const absl::Time deadline = absl::Now() + kTimeout;
  v1::SaveCheckpointResponse checkpoint;
  while (true) {
    absl::StatusOr<v1::SaveCheckpointResponse> response = source.SaveCheckpoint(checkpoint.id(), kCallTimeout);
    std::string failure;
    bool final = false;
    if (response.ok()) {
      checkpoint = *std::move(response);
      final = !checkpoint.pending();
      failure = final ? checkpoint.failure()
                      : absl::StrCat("timed out after ", absl::FormatDuration(kTimeout), " waiting for ",
                                     checkpoint.waiting_for());
    } else {
      final = !IsUnresponsive(response.status());
      failure = std::string(response.status().message());
    }
    if (final && failure.empty()) {
      return absl::StrCat("checkpoint ", checkpoint.id(), " saved at step ", checkpoint.step(), ", epoch ",
                          checkpoint.epoch());
    }
    if (final || absl::Now() >= deadline) return absl::StrCat("no checkpoint was saved: ", failure);
    if (!wait(kPause)) return "";
  }
}

}  // namespace ballast
