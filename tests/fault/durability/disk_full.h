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

struct DiskFullOptions {
  // Path of ballast_server.
  std::string server;
  // Of the test's own; it is there and empty. A small disk is mounted there.
  std::string folder;
  v1::Durability::Mode mode = v1::Durability::WAL;
  uint32_t rounds = 5;
};

struct DiskFullCounts {
  uint64_t rounds = 0;
  // Refused for want of room.
  uint64_t pushes_refused = 0;
  // Rounds in which the full disk had other consequences: a server that ended, a push that was taken again and again or
  // refused for another reason, values that were not what was acknowledged, before or after a restart; or in which no
  // push was taken within 5 s of there being room again. And the first such.
  uint64_t wrong = 0;
  std::string first_wrong;
  // From there being room again to the first push that was taken.
  std::vector<double> recovery_seconds;

  static std::vector<NamedCount<DiskFullCounts>> Fields();
  void Add(const DiskFullCounts& other);
  bool good() const { return rounds > 0 && wrong == 0; }
  nlohmann::ordered_json ToJson() const;
};

// Fills a real server's disk to the last byte and empties it again; pushes and pulls before, meanwhile and after. In
// the end of each round the server is killed, and what its successor has compared. UNAVAILABLE where this process may
// not mount a disk. To be called by the main thread.
absl::StatusOr<DiskFullCounts> FillDisks(const DiskFullOptions& options);

}  // namespace ballast
