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
  // Pushes in flight in each round.
  uint32_t late_pushes = 20;
  uint64_t seed = 1;
};

struct OldIncarnationCounts {
  uint64_t rounds = 0;
  // Late pushes, sent before the successor's first push but received after it: refused (correct) or accepted.
  uint64_t refused = 0;
  uint64_t accepted = 0;
  // Rounds after which the weights did not match the accepted pushes.
  uint64_t wrong_weights = 0;

  static std::vector<NamedCount<OldIncarnationCounts>> Fields();
  void Add(const OldIncarnationCounts& other) { AddFields(other, *this); }
  bool good() const { return rounds > 0 && accepted == 0 && wrong_weights == 0; }
  nlohmann::ordered_json ToJson() const;
};

// Cuts a worker with pushes in flight off a real server and replaces it by its successor; when the partition heals
// the pushes arrive. Each must be refused with FAILED_PRECONDITION and leave the weights unchanged. To be called by
// the main thread.
absl::StatusOr<OldIncarnationCounts> SendLatePushes(const OldIncarnationOptions& options);

}  // namespace ballast
