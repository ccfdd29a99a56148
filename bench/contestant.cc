// SPDX-License-Identifier: Apache-2.0
#include "bench/contestant.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/bench_report.h"
#include "bench/peers/child_server.h"

namespace ballast {
namespace {

constexpr int kRounds = 7;
// Duration of the warm-up round relative to a counted round.
constexpr double kWarmUpShare = 0.5;

double RateOf(const Round& round) { return static_cast<double>(round.bytes) / 1e9 / round.seconds; }

}  // namespace

double Contestant::GbPerSecond() const {
  // Uses the median round, so that a disturbed round does not count.
  std::vector<double> rates;
  for (const Round& round : rounds) rates.push_back(RateOf(round));
  return Median(rates);
}

double Contestant::CpuSecondsPerGb() const {
  uint64_t bytes = 0;
  for (const Round& round : rounds) bytes += round.bytes;
  return bytes == 0 ? 0 : cpu_seconds / (static_cast<double>(bytes) / 1e9);
}

double Contestant::LatencySeconds(double share) const {
  std::vector<double> all;
  for (const Round& round : rounds) all.insert(all.end(), round.latencies.begin(), round.latencies.end());
  return Percentile(std::move(all), share);
}

double RatioOfRates(const Contestant& ours, const Contestant& peer) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(ours.rounds.size(), peer.rounds.size()); ++i) {
    ratios.push_back(RateOf(ours.rounds[i]) / RateOf(peer.rounds[i]));
  }
  return Median(ratios);
}

absl::StatusOr<Round> Repeat(absl::Duration duration, uint64_t bytes, const std::function<absl::Status()>& operation) {
  Round round;
  const absl::Time begin = absl::Now();
  absl::Time last = begin;
  do {
    if (absl::Status status = operation(); !status.ok()) return status;
    const absl::Time now = absl::Now();
    round.latencies.push_back(absl::ToDoubleSeconds(now - last));
    round.bytes += bytes;
    last = now;
  } while (last - begin < duration);
  round.seconds = absl::ToDoubleSeconds(last - begin);
  return round;
}

absl::StatusOr<Round> RepeatOnThreads(int threads, absl::Duration duration, uint64_t bytes,
                                      const std::function<absl::Status(int)>& operation) {
  std::vector<absl::StatusOr<Round>> found(threads, Round());
  std::vector<std::thread> running;
  for (int thread = 1; thread < threads; ++thread) {
    running.emplace_back([&, thread] { found[thread] = Repeat(duration, bytes, [&] { return operation(thread); }); });
  }
  found[0] = Repeat(duration, bytes, [&] { return operation(0); });
  for (std::thread& thread : running) thread.join();
  Round all;
  for (absl::StatusOr<Round>& one : found) {
    if (!one.ok()) return one.status();
    all.seconds = std::max(all.seconds, one->seconds);
    all.bytes += one->bytes;
    all.latencies.insert(all.latencies.end(), one->latencies.begin(), one->latencies.end());
  }
  return all;
}

absl::Status RunInTurn(absl::Span<Contestant> contestants, double seconds) {
  const absl::Duration each = absl::Seconds(seconds / kRounds);
  for (int round = -1; round < kRounds; ++round) {
    for (Contestant& contestant : contestants) {
      const double server_cpu_before = CpuSecondsOf(contestant.servers);
      const double cpu_before = CpuSecondsWith(contestant.servers);
      absl::StatusOr<Round> found = contestant.run(round < 0 ? each * kWarmUpShare : each);
      if (!found.ok()) {
        return absl::Status(found.status().code(), absl::StrCat(contestant.name, ": ", found.status().message()));
      }
      if (round < 0) continue;
      contestant.cpu_seconds += CpuSecondsWith(contestant.servers) - cpu_before;
      contestant.server_cpu_seconds += CpuSecondsOf(contestant.servers) - server_cpu_before;
      contestant.rounds.push_back(*std::move(found));
    }
  }
  return absl::OkStatus();
}

}  // namespace ballast
