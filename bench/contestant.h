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

// The result of one round of measuring.
struct Round {
  double seconds = 0;
  uint64_t bytes = 0;
  // Seconds per operation; empty if operations are not measured individually.
  std::vector<double> latencies;
};

// One of several operations measured in turn, so that a temporary slowdown of the machine affects all of them. Thread
// safety: confined to one thread.
struct Contestant {
  std::string name;
  // Works for about the given time.
  std::function<absl::StatusOr<Round>(absl::Duration)> run;
  // Processes whose CPU time is added to this process's.
  absl::Span<const ChildServer> servers;

  // Filled by RunInTurn.
  std::vector<Round> rounds;
  double cpu_seconds = 0;
  // The servers' part of it.
  double server_cpu_seconds = 0;

  // Results over all rounds.
  double GbPerSecond() const;
  double CpuSecondsPerGb() const;
  double LatencySeconds(double share) const;
};

// Ratio of our GB/s to the peer's: the median of the ratios of the rounds, because a temporary slowdown affects both
// in the same round.
double RatioOfRates(const Contestant& ours, const Contestant& peer);

// Runs `operation` repeatedly until `duration` is over, at least once.
absl::StatusOr<Round> Repeat(absl::Duration duration, uint64_t bytes, const std::function<absl::Status()>& operation);

// Like Repeat, on several threads at once; passes the thread's index to `operation`.
absl::StatusOr<Round> RepeatOnThreads(int threads, absl::Duration duration, uint64_t bytes,
                                      const std::function<absl::Status(int)>& operation);

// Runs several rounds, each contestant once per round, `seconds` in total per contestant, after a short warm-up round
// that does not count. An error names the contestant that failed.
absl::Status RunInTurn(absl::Span<Contestant> contestants, double seconds);

}  // namespace ballast
