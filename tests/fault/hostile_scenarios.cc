// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/hostile_scenarios.h"

#include <functional>
#include <utility>
#include <vector>

#include "tests/fault/hostile/hostile_soak.h"
#include "tests/fault/hostile/http2_floods.h"
#include "tests/fault/hostile/racing_writer.h"
#include "tests/fault/hostile/reader_calls.h"
#include "tests/fault/hostile/waiting_pulls.h"
#include "tests/fault/jobs/fashion_job.h"

namespace ballast {
namespace {

// All attacks, one per line.
std::vector<Attack> Attacks() {
  std::vector<Attack> attacks = {
      WaitingPulls(),
      RacingPushes(),
      ReaderCalls(),
  };
  for (Attack& flood : Http2Floods()) attacks.push_back(std::move(flood));
  return attacks;
}

absl::StatusOr<Outcome> Hostile(const SoakPlace& place, absl::Duration time, uint64_t) {
  if (absl::Status data = FindFashionData(); !data.ok()) return Skipped(data);
  const StateFolder folder(place, "hostile");
  const absl::StatusOr<HostileCounts> counts = SoakHostile(
      {.server = place.server, .worker = place.worker, .folder = folder.path(), .time = time, .attacks = Attacks()});
  if (!counts.ok()) return counts.status();
  Outcome outcome;
  outcome.figures = counts->ToJson();
  outcome.good = counts->good;
  return outcome;
}

}  // namespace

std::vector<Scenario> HostileScenarios(const SoakPlace& place) {
  using namespace std::placeholders;
  return {{"hostile", 0, std::bind(Hostile, place, _1, _2)}};
}

}  // namespace ballast
