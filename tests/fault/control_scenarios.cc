// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/control_scenarios.h"

#include <functional>

#include "tests/fault/control/control_latency.h"

namespace ballast {
namespace {

// Limit on a machine whose cores are busy: ten times the latency on an idle one.
constexpr absl::Duration kMaxP99 = absl::Milliseconds(500);

absl::StatusOr<Outcome> SlowDisk(const SoakPlace& place, absl::Duration time, uint64_t) {
  const StateFolder folder(place, "slow-disk");
  ControlOptions options;
  options.server = place.server;
  options.slow_disk_server = place.slow_disk_server;
  options.folder = folder.path();
  options.phases = {ControlPhase::kCheckpoint, ControlPhase::kResume, ControlPhase::kDeclaration,
                    ControlPhase::kPushLoad, ControlPhase::kStopped};
  options.declared_mib = 256;
  // Duration of the checkpoints, and of the load.
  options.time = time * 0.4;
  const absl::StatusOr<ControlReport> report = MeasureControl(options);
  if (!report.ok()) return report.status();
  Outcome outcome;
  outcome.figures = report->ToJson();
  outcome.good = report->good(kMaxP99);
  return outcome;
}

}  // namespace

std::vector<Scenario> ControlScenarios(const SoakPlace& place) {
  using namespace std::placeholders;
  return {{"slow_disk", 0, std::bind(SlowDisk, place, _1, _2)}};
}

}  // namespace ballast
