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
  // Of the test's own; emptied.
  std::string folder;
  uint32_t bit_flips = 50;
  uint32_t truncations = 50;
  uint64_t seed = 1;
};

struct DamageCounts {
  uint64_t bit_flips = 0;
  uint64_t truncations = 0;
  // Refused, with a message that names the file; the end cut off, all before it there; nothing missing, where what was
  // hit says nothing (the zeros between records).
  uint64_t refused = 0;
  uint64_t cut = 0;
  uint64_t unharmed = 0;
  // Loaded, and not what was written; or something cut off though no file was.
  uint64_t silent = 0;
  // Of the first such.
  std::string first_silent;

  static std::vector<NamedCount<DamageCounts>> Fields();
  void Add(const DamageCounts& other);
  // Whether the promise was kept.
  bool good() const { return silent == 0; }
  nlohmann::ordered_json ToJson() const;
};

// Damages a folder of snapshot and log, one thing at a time, and has a shard recover from it.
absl::StatusOr<DamageCounts> DamageFolders(const DamageOptions& options);

}  // namespace ballast
