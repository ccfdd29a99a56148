// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ballast/v1/tensor.pb.h"
#include "tests/fault/programs/count_fields.h"

namespace ballast {

struct LostDiskOptions {
  // Of the test's own; emptied.
  std::string folder;
  v1::Durability::Mode mode = v1::Durability::WAL_SYNC;
  uint32_t rounds = 10;
  uint32_t workers = 4;
  // Each machine dies after some number of acknowledgements up to that.
  uint64_t most_pushes = 600;
  uint64_t seed = 1;
};

struct LostDiskCounts {
  v1::Durability::Mode mode = v1::Durability::WAL_SYNC;
  uint64_t rounds = 0;
  uint64_t acknowledged = 0;
  // Acknowledged before the machine died, and not there after it.
  uint64_t lost = 0;
  uint64_t duplicated = 0;
  // From the acknowledgement of the oldest of the lost to the machine's death.
  double oldest_lost_seconds = 0;

  static std::vector<NamedCount<LostDiskCounts>> Fields();
  void Add(const LostDiskCounts& other);
  // Whether the mode's promise was kept: under WAL nothing that was older than a second is lost, else nothing.
  bool good() const { return duplicated == 0 && (mode == v1::Durability::WAL ? oldest_lost_seconds <= 1 : lost == 0); }
  nlohmann::ordered_json ToJson() const;
};

// A machine that dies while pushes are acknowledged, again and again: of what was not synced, a part is gone, a part
// was never written, a part is there. Then the shard recovers and the workers send again what they have no answer to.
absl::StatusOr<LostDiskCounts> LoseDisks(const LostDiskOptions& options);

}  // namespace ballast
