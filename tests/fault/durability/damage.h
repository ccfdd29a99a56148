// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/fault/programs/count_fields.h"

namespace ballast {

struct DamageOptions {
  // Directory of the test's own; emptied.
  std::string folder;
  uint32_t bit_flips = 50;
  uint32_t truncations = 50;
  uint64_t seed = 1;
};

struct DamageCounts {
  uint64_t bit_flips = 0;
  uint64_t truncations = 0;
  // Refused with an error that names the file; cut at the damage, with everything before it present; complete,
  // because the damaged bytes have no meaning (the zeros between records).
  uint64_t refused = 0;
  uint64_t cut = 0;
  uint64_t unharmed = 0;
  // Loaded with other content than was written, or cut though no file was cut.
  uint64_t silent = 0;
  // Description of the first of these.
  std::string first_silent;

  static std::vector<NamedCount<DamageCounts>> Fields();
  void Add(const DamageCounts& other);
  // True if nothing was silent.
  bool good() const { return silent == 0; }
  nlohmann::ordered_json ToJson() const;
};

// Damages a directory of snapshot and log, one change at a time, and has a shard recover from it.
absl::StatusOr<DamageCounts> DamageFolders(const DamageOptions& options);

}  // namespace ballast
