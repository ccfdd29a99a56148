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

  static std::vector<NamedCount<CheckpointKillCounts>> Fields();
  // The first round has nothing to resume from.
  bool good() const { return wrong == 0 && resumed + 1 >= rounds; }
  nlohmann::ordered_json ToJson() const;
};

// Runs an endless job that takes a checkpoint each second. During a checkpoint its servers are killed, all within
// some milliseconds; the remaining checkpoints are verified, and the next servers resume from them. An error is a
// failure of the test itself, or a job that takes no further checkpoint. To be called by the main thread.
absl::StatusOr<CheckpointKillCounts> KillInCheckpoints(const CheckpointKillOptions& options);

}  // namespace ballast
