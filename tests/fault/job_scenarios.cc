// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/job_scenarios.h"

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

}  // namespace

std::vector<Scenario> JobScenarios(const SoakPlace& place) {
  return {WorkerKills(place, "sync"), WorkerKills(place, "async")};
}

}  // namespace ballast
