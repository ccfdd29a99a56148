// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace ballast {

class ChildServer;

// What one round of measuring found.
struct Round {
  double seconds = 0;
  uint64_t bytes = 0;
  // Of each operation, in seconds; empty where there are none to tell apart.
  std::vector<double> latencies;
};

// One of those that are measured in turn, so that whatever slows the machine for a while slows all of them.
// Thread safety: confined to one thread.
struct Contestant {
  std::string name;
  // Works for about so long.
  std::function<absl::StatusOr<Round>(absl::Duration)> run;
  // Whose CPU time counts, besides this process's.
  absl::Span<const ChildServer> servers;

  // Filled by RunInTurn.
  std::vector<Round> rounds;
  double cpu_seconds = 0;

  // Of all rounds.
  double GbPerSecond() const;
  double CpuSecondsPerGb() const;
  double LatencySeconds(double share) const;
};

// GB/s of one over those of the other: the middle one of the rounds' ratios, since what slows the machine for a while
// slows both in that round.
double RatioOfRates(const Contestant& ours, const Contestant& peer);

// One operation after the other until `duration` is over, at least one.
absl::StatusOr<Round> Repeat(absl::Duration duration, uint64_t bytes, const std::function<absl::Status()>& operation);

// Repeats on several threads at once, `operation` with the thread's number.
absl::StatusOr<Round> RepeatOnThreads(int threads, absl::Duration duration, uint64_t bytes,
                                      const std::function<absl::Status(int)>& operation);

// Some rounds, in each of them one after the other, `seconds` in all for each; before them a short one that does not
// count. An error names who failed.
absl::Status RunInTurn(absl::Span<Contestant> contestants, double seconds);

}  // namespace ballast
