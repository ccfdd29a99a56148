// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/fault/programs/count_fields.h"

namespace ballast {

struct WorkerKillOptions {
  // Paths of ballast_server and ballast_worker.
  std::string server;
  std::string worker;
  // Existing directory of the test's own.
  std::string folder;
  // Policy as in a job file: "async {}".
  std::string policy;
  uint32_t workers = 3;
  // The run ends with the round that reaches one of these.
  uint64_t rounds = 1000000;
  absl::Duration time = absl::InfiniteDuration();
  // Timeout for the others to continue and for the killed worker to rejoin; after it the job counts as hung.
  absl::Duration timeout = absl::Seconds(60);
};

struct WorkerKillCounts {
  uint64_t rounds = 0;
  uint64_t pushes_accepted = 0;
  // After any round: push messages that were acknowledged to a worker and that a shard does not count; and those that
  // a shard counts more often than the worker sent them.
  uint64_t pushes_lost = 0;
  uint64_t pushes_duplicated = 0;
  // Sequence numbers, up to the highest, that a shard never received from workers that ended in order.
  uint64_t pushes_missing = 0;
  uint64_t hangs = 0;
  // Time from each kill until every other worker had made some more steps; and until the killed one's successor had.
  std::vector<double> others_seconds;
  std::vector<double> return_seconds;

  static std::vector<NamedCount<WorkerKillCounts>> Fields();
  bool good() const { return pushes_lost + pushes_duplicated + pushes_missing + hangs == 0; }
  nlohmann::ordered_json ToJson() const;
};

// Runs an endless job whose workers are killed one after the other and restarted, like by an operator: the job is not
// told. An error is a failure of the test itself, or of a process that ended without being killed. To be called by
// the main thread.
absl::StatusOr<WorkerKillCounts> KillWorkers(const WorkerKillOptions& options);

}  // namespace ballast
