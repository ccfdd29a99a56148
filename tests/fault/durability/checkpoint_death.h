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
  // Of the test's own; emptied.
  std::string folder;
  // Deaths in the middle of a checkpoint, and each kind of damage to whole ones.
  uint32_t deaths = 50;
  uint32_t bit_flips = 50;
  uint32_t truncations = 50;
  uint64_t seed = 1;
};

struct CheckpointDeathCounts {
  uint64_t deaths = 0;
  // What loaded after a death, whole.
  uint64_t old_loaded = 0;
  uint64_t new_loaded = 0;
  uint64_t bit_flips = 0;
  uint64_t truncations = 0;
  // Damage that was refused with the name of the file that has it.
  uint64_t refused = 0;
  // Neither of these: nothing loaded after a death, or a mixture, or an older one than was said to be safe, or no
  // further one could be taken; damage that loaded. And the first such.
  uint64_t wrong = 0;
  std::string first_wrong;

  static std::vector<NamedCount<CheckpointDeathCounts>> Fields();
  void Add(const CheckpointDeathCounts& other);
  // Whether the promise was kept.
  bool good() const { return wrong == 0; }
  nlohmann::ordered_json ToJson() const;
};

// Takes checkpoints of two shards and dies at any of their accesses to the disk, half of the times with all that was
// not synced; then damages whole ones.
absl::StatusOr<CheckpointDeathCounts> DieInCheckpoints(const CheckpointDeathOptions& options);

}  // namespace ballast
