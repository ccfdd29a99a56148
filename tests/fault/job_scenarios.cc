// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/job_scenarios.h"

#include <functional>

#include "tests/fault/jobs/checkpoint_kills.h"
#include "tests/fault/jobs/training_soak.h"
#include "tests/fault/jobs/worker_kills.h"

namespace ballast {
namespace {

Scenario WorkerKills(const SoakPlace& place, const std::string& policy) {
  const std::string name = "worker_kills_" + policy;
  return {name, 0, [=](absl::Duration time, uint64_t) {
            const StateFolder folder(place, name);
            return OutcomeOf(KillWorkers({.server = place.server,
                                          .worker = place.worker,
                                          .folder = folder.path(),
                                          .policy = policy + " {}",
                                          .time = time}));
          }};
}

absl::StatusOr<Outcome> CheckpointKills(const SoakPlace& place, absl::Duration time, uint64_t seed) {
  const StateFolder folder(place, "checkpoint-kills");
  return OutcomeOf(KillInCheckpoints({.ballast = place.ballast,
                                      .server = place.server,
                                      .worker = place.worker,
                                      .folder = folder.path(),
                                      .time = time,
                                      .seed = seed}));
}

absl::StatusOr<Outcome> Training(const SoakPlace& place, absl::Duration time, uint64_t) {
  const StateFolder folder(place, "training");
  const absl::StatusOr<TrainingSoakCounts> counts = SoakTraining({.ballast = place.ballast,
                                                                  .server = place.server,
                                                                  .worker = place.worker,
                                                                  .folder = folder.path(),
                                                                  .time = time});
  return absl::IsUnavailable(counts.status()) ? Skipped(counts.status()) : OutcomeOf(counts);
}

}  // namespace

std::vector<Scenario> JobScenarios(const SoakPlace& place) {
  using namespace std::placeholders;
  return {
      WorkerKills(place, "sync"),
      WorkerKills(place, "async"),
      {"checkpoint_kills", 0, std::bind(CheckpointKills, place, _1, _2)},
      {"training", 0, std::bind(Training, place, _1, _2)},
  };
}

}  // namespace ballast
