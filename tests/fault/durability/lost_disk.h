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
  // Directory of the test's own; emptied.
  std::string folder;
  v1::Durability::Mode mode = v1::Durability::WAL_SYNC;
  uint32_t rounds = 10;
  uint32_t workers = 4;
  // Each machine dies after a random number of acknowledgements, up to this one.
  uint64_t most_pushes = 600;
  uint64_t seed = 1;
};

struct LostDiskCounts {
  v1::Durability::Mode mode = v1::Durability::WAL_SYNC;
  uint64_t rounds = 0;
  uint64_t acknowledged = 0;
  // Acknowledged before the machine died, and missing after it.
  uint64_t lost = 0;
  uint64_t duplicated = 0;
  // Time from the acknowledgement of the oldest lost push to the machine's death.
  double oldest_lost_seconds = 0;

  static std::vector<NamedCount<LostDiskCounts>> Fields();
  void Add(const LostDiskCounts& other);
  // True if the mode's guarantee holds: with WAL nothing older than a second is lost, otherwise nothing is.
  bool good() const { return duplicated == 0 && (mode == v1::Durability::WAL ? oldest_lost_seconds <= 1 : lost == 0); }
  nlohmann::ordered_json ToJson() const;
};

// A machine dies repeatedly while pushes are acknowledged: of the unsynced data, a part is lost, a part was never
// written, a part is present. Then the shard recovers and the workers resend what has no response.
absl::StatusOr<LostDiskCounts> LoseDisks(const LostDiskOptions& options);

}  // namespace ballast
