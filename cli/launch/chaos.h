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

// How often `launch` kills which of its own children, to show that a job outlives it.
struct ChaosPlan {
  // Between two kills; infinite: none.
  absl::Duration kill_server = absl::InfiniteDuration();
  absl::Duration kill_worker = absl::InfiniteDuration();
  // Picks the victims.
  uint32_t seed = 1;
};

// "kill-server=20s,kill-worker=30s,seed=7", each part once, at least one kill. INVALID_ARGUMENT names the part.
absl::StatusOr<ChaosPlan> ParseChaos(absl::string_view text);

// Says when to kill, and whom. Kills nobody itself. Thread safety: none.
class Chaos {
 public:
  // The first kill is one interval after `start`.
  Chaos(const ChaosPlan& plan, absl::Time start)
      : plan_(plan),
        next_server_(start + plan.kill_server),
        next_worker_(start + plan.kill_worker),
        random_(plan.seed) {}

  // When the next kill is due.
  absl::Time next() const;

  // One of those given, where a kill of their sort is due and there are any; the next is an interval later.
  std::optional<int> Target(bool server, const std::vector<int>& candidates, absl::Time now);

 private:
  const ChaosPlan plan_;
  absl::Time next_server_;
  absl::Time next_worker_;
  std::mt19937 random_;
};

}  // namespace ballast
