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
  // Of the test's own; it is there.
  std::string folder;
  // "async {}", as a job file has it.
  std::string policy;
  uint32_t workers = 3;
  // The run ends with the round in which one of them is reached.
  uint64_t rounds = 1000000;
  absl::Duration time = absl::InfiniteDuration();
  // In which the others must go on, and the killed worker take part again; else it hangs.
  absl::Duration patience = absl::Seconds(60);
};

struct WorkerKillCounts {
  uint64_t rounds = 0;
  uint64_t pushes_accepted = 0;
  // Push messages that a worker said were acknowledged and that a shard does not count, after any round; and those that
  // a shard counts more often than the worker made them.
  uint64_t pushes_lost = 0;
  uint64_t pushes_duplicated = 0;
  // Of workers that ended in order: numbers up to the highest that a shard has not taken.
  uint64_t pushes_missing = 0;
  uint64_t hangs = 0;
  // From each kill until every other worker had made some steps more; and until the killed one's successor had.
  std::vector<double> others_seconds;
  std::vector<double> return_seconds;

  static std::vector<NamedCount<WorkerKillCounts>> Fields();
  bool good() const { return pushes_lost + pushes_duplicated + pushes_missing + hangs == 0; }
  nlohmann::ordered_json ToJson() const;
};

// A job without end, whose workers are killed one after the other and started again, as by an operator: nobody tells
// the job of it. An error is the test's own, or of a process that ended though nobody killed it. To be called by the
// main thread.
absl::StatusOr<WorkerKillCounts> KillWorkers(const WorkerKillOptions& options);

}  // namespace ballast
