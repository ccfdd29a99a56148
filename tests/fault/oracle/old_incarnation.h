// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/fault/programs/count_fields.h"

namespace ballast {

struct OldIncarnationOptions {
  // Path of ballast_server.
  std::string server;
  uint32_t rounds = 5;
  // That are on their way in each.
  uint32_t late_pushes = 20;
  uint64_t seed = 1;
};

struct OldIncarnationCounts {
  uint64_t rounds = 0;
  // That came after the successor's first push: refused as they should be, and not.
  uint64_t refused = 0;
  uint64_t accepted = 0;
  // Rounds after which the weights were not what the accepted pushes make.
  uint64_t wrong_weights = 0;

  static std::vector<NamedCount<OldIncarnationCounts>> Fields();
  void Add(const OldIncarnationCounts& other) { AddFields(other, *this); }
  bool good() const { return rounds > 0 && accepted == 0 && wrong_weights == 0; }
  nlohmann::ordered_json ToJson() const;
};

// A worker is cut off with pushes on their way and replaced by its successor, on a real server; when the partition
// heals they arrive. Each is to be refused with FAILED_PRECONDITION, and the weights are not to change. To be called by
// the main thread.
absl::StatusOr<OldIncarnationCounts> SendLatePushes(const OldIncarnationOptions& options);

}  // namespace ballast
