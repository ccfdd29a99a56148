// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/fault/programs/count_fields.h"

namespace ballast {

struct CheckpointDeathOptions {
  // Directory of the test's own; emptied.
  std::string folder;
  // Deaths in the middle of a checkpoint, and each kind of damage to complete ones.
  uint32_t deaths = 50;
  uint32_t bit_flips = 50;
  uint32_t truncations = 50;
  uint64_t seed = 1;
};

struct CheckpointDeathCounts {
  uint64_t deaths = 0;
  // Complete checkpoints that loaded after a death: the old or the new one.
  uint64_t old_loaded = 0;
  uint64_t new_loaded = 0;
  uint64_t bit_flips = 0;
  uint64_t truncations = 0;
  // Damage that was refused with an error that names the damaged file.
  uint64_t refused = 0;
  // All other outcomes: after a death nothing loaded, a mixture loaded, one older than the committed one loaded, or
  // the next checkpoint failed; or damage loaded. Description of the first.
  uint64_t wrong = 0;
  std::string first_wrong;

  static std::vector<NamedCount<CheckpointDeathCounts>> Fields();
  void Add(const CheckpointDeathCounts& other);
  // True if nothing was wrong.
  bool good() const { return wrong == 0; }
  nlohmann::ordered_json ToJson() const;
};

// Takes checkpoints of two shards and dies at one of their disk accesses, half of the times with the loss of
// unsynced data; then damages complete checkpoints.
absl::StatusOr<CheckpointDeathCounts> DieInCheckpoints(const CheckpointDeathOptions& options);

}  // namespace ballast
