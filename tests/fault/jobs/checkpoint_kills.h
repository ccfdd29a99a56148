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
  // Of the test's own; it is there.
  std::string folder;
  // The run ends with the round in which one of them is reached.
  uint64_t rounds = 1000000;
  absl::Duration time = absl::InfiniteDuration();
  uint64_t seed = 1;
};

struct CheckpointKillCounts {
  uint64_t rounds = 0;
  // What was the newest whole one after the kill: that of before, or the one under way.
  uint64_t old_left = 0;
  uint64_t new_left = 0;
  // Of the rounds with the old one: so often there was a piece of the new one.
  uint64_t pieces_left = 0;
  // Rounds whose servers said that they go on from the newest one.
  uint64_t resumed = 0;
  // Rounds whose job failed before a checkpoint was begun, as one does whose server was not heard of for 3 s on a busy
  // machine; the next servers go on all the same.
  uint64_t given_up = 0;
  // `ballast checkpoint verify` found fault, or the newest was older than one that had been whole. And the first such.
  uint64_t wrong = 0;
  std::string first_wrong;

  static std::vector<NamedCount<CheckpointKillCounts>> Fields();
  // The first round has nothing to go on from.
  bool good() const { return wrong == 0 && resumed + 1 >= rounds; }
  nlohmann::ordered_json ToJson() const;
};

// A job without end that takes a checkpoint each second. When one is on its way its servers are killed, all within some
// milliseconds; what they left is verified, and the next servers go on from it. An error is the test's own, or of a job
// that takes no further checkpoint. To be called by the main thread.
absl::StatusOr<CheckpointKillCounts> KillInCheckpoints(const CheckpointKillOptions& options);

}  // namespace ballast
