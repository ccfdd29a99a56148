// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ballast {

// Plan by which `launch` kills its own servers and workers, to test recovery.
struct ChaosPlan {
  // Interval between kills; infinite: no kills.
  absl::Duration kill_server = absl::InfiniteDuration();
  absl::Duration kill_worker = absl::InfiniteDuration();
  // Seed for the choice of targets.
  uint32_t seed = 1;
};

// Parses "kill-server=20s,kill-worker=30s,seed=7": each part at most once, and at least one kill interval.
// INVALID_ARGUMENT names the bad part.
absl::StatusOr<ChaosPlan> ParseChaos(absl::string_view text);

// Decides when to kill and which process. Does not kill it. Thread safety: none.
class Chaos {
 public:
  // The first kill is one interval after `start`.
  Chaos(const ChaosPlan& plan, absl::Time start)
      : plan_(plan),
        next_server_(start + plan.kill_server),
        next_worker_(start + plan.kill_worker),
        random_(plan.seed) {}

  // Returns the time of the next kill.
  absl::Time next() const;

  // If a kill of this kind (server or worker) is due, picks one of `candidates` and schedules the next kill one
  // interval after `now`, even if there are no candidates.
  std::optional<int> Target(bool server, const std::vector<int>& candidates, absl::Time now);

 private:
  const ChaosPlan plan_;
  absl::Time next_server_;
  absl::Time next_worker_;
  std::mt19937 random_;
};

}  // namespace ballast
