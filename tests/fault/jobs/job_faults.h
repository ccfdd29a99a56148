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

// Faults in whole jobs, one per source file.

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

  static std::vector<NamedCount<WorkerKillCounts>> Fields() {
    using C = WorkerKillCounts;
    return {{"rounds", &C::rounds},
            {"pushes_accepted", &C::pushes_accepted},
            {"pushes_lost", &C::pushes_lost},
            {"pushes_duplicated", &C::pushes_duplicated},
            {"pushes_missing", &C::pushes_missing},
            {"hangs", &C::hangs}};
  }
  bool good() const { return pushes_lost + pushes_duplicated + pushes_missing + hangs == 0; }
  nlohmann::ordered_json ToJson() const;
};

// Runs an endless job whose workers are killed one after the other and restarted, like by an operator: the job is not
// told. An error is a failure of the test itself, or of a process that ended without being killed. To be called by
// the main thread.
absl::StatusOr<WorkerKillCounts> KillWorkers(const WorkerKillOptions& options);

struct CheckpointKillOptions {
  // Paths of ballast, ballast_server and ballast_worker.
  std::string ballast;
  std::string server;
  std::string worker;
  // Existing directory of the test's own.
  std::string folder;
  // The run ends with the round that reaches one of these.
  uint64_t rounds = 1000000;
  absl::Duration time = absl::InfiniteDuration();
  uint64_t seed = 1;
};

struct CheckpointKillCounts {
  uint64_t rounds = 0;
  // The newest complete checkpoint after the kill: the previous one, or the one in progress.
  uint64_t old_left = 0;
  uint64_t new_left = 0;
  // Rounds with the old one in which parts of the new one remained.
  uint64_t pieces_left = 0;
  // Rounds whose servers reported that they resume from the newest one.
  uint64_t resumed = 0;
  // Rounds whose job failed before a checkpoint began, for example because a server sent no heartbeat for 3 s on a
  // busy machine; the next servers continue anyway.
  uint64_t given_up = 0;
  // `ballast checkpoint verify` failed, or an earlier complete checkpoint was newer. Description of the first.
  uint64_t wrong = 0;
  std::string first_wrong;

  static std::vector<NamedCount<CheckpointKillCounts>> Fields() {
    using C = CheckpointKillCounts;
    return {{"rounds", &C::rounds},     {"old_left", &C::old_left},
            {"new_left", &C::new_left}, {"pieces_left", &C::pieces_left},
            {"resumed", &C::resumed},   {"given_up", &C::given_up},
            {"wrong", &C::wrong}};
  }
  // The first round has nothing to resume from.
  bool good() const { return wrong == 0 && resumed + 1 >= rounds; }
  nlohmann::ordered_json ToJson() const;
};

// Runs an endless job that takes a checkpoint each second. During a checkpoint its servers are killed, all within
// some milliseconds; the remaining checkpoints are verified, and the next servers resume from them. An error is a
// failure of the test itself, or a job that takes no further checkpoint. To be called by the main thread.
absl::StatusOr<CheckpointKillCounts> KillInCheckpoints(const CheckpointKillOptions& options);

struct TrainingSoakOptions {
  // Paths of ballast, ballast_server and ballast_worker.
  std::string ballast;
  std::string server;
  std::string worker;
  // Existing directory of the test's own.
  std::string folder;
  // Flags of `launch`; kills come sooner if there is less time.
  std::string durability = "wal";
  absl::Duration kill_server = absl::Seconds(60);
  absl::Duration kill_worker = absl::Seconds(45);
  // Approximate duration of the run with kills; the same job without kills runs at the same time.
  absl::Duration time = absl::Minutes(5);
  double accuracy_tolerance = 0.01;
};

// Resource use of processes: medians over the first and the last quarter of the time.
struct UseOverTime {
  // One sample per second.
  uint64_t samples = 0;
  uint64_t resident_bytes_first = 0, resident_bytes_last = 0;
  uint64_t descriptors_first = 0, descriptors_last = 0;

  // True unless growth of more than a fifth and noise suggests a leak. In the first minute everything grows.
  bool level() const {
    if (samples < 120) return true;
    return resident_bytes_last <= resident_bytes_first / 5 * 6 + (16 << 20) &&
           descriptors_last <= descriptors_first / 5 * 6 + 8;
  }
};

struct TrainingSoakCounts {
  uint64_t epochs = 0;
  // Processes that were killed and restarted.
  uint64_t restarts = 0;
  uint64_t workers_lost = 0;
  uint64_t examples = 0;
  uint64_t examples_repeated = 0;
  uint64_t pushes_lost = 0;
  uint64_t pushes_duplicated = 0;
  // Duration of the run with kills, and of the other run.
  double seconds = 0;
  double seconds_without_kills = 0;
  double accuracy = 0;
  double accuracy_without_kills = 0;
  double accuracy_tolerance = 0;
  // Servers of the run with kills, which are restarted; those of the other run, and `launch`, which stay.
  UseOverTime servers, servers_without_kills, launch;

  static std::vector<NamedCount<TrainingSoakCounts>> Fields() {
    using C = TrainingSoakCounts;
    return {{"epochs", &C::epochs},
            {"restarts", &C::restarts},
            {"workers_lost", &C::workers_lost},
            {"examples", &C::examples},
            {"examples_repeated", &C::examples_repeated},
            {"pushes_lost", &C::pushes_lost},
            {"pushes_duplicated", &C::pushes_duplicated}};
  }
  bool good() const;
  nlohmann::ordered_json ToJson() const;
};

// Trains a network on Fashion-MNIST under `ballast launch`, which kills servers and workers, and at the same time the
// same job without kills. UNAVAILABLE if the data is not installed. An error means that a run did not end
// successfully. To be called by the main thread.
absl::StatusOr<TrainingSoakCounts> SoakTraining(const TrainingSoakOptions& options);

}  // namespace ballast
