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
  // Empty directory of the test's own. A small disk is mounted there.
  std::string folder;
  v1::Durability::Mode mode = v1::Durability::WAL;
  uint32_t rounds = 5;
};

struct DiskFullCounts {
  uint64_t rounds = 0;
  // Refused because the disk was full.
  uint64_t pushes_refused = 0;
  // Rounds in which the full disk had other effects: the server ended, pushes kept being accepted or were refused for
  // another reason, values differed from the acknowledged ones before or after a restart, or no push was accepted
  // within 5 s of space being freed. Description of the first.
  uint64_t wrong = 0;
  std::string first_wrong;
  // Time from freeing the space to the first accepted push.
  std::vector<double> recovery_seconds;

  static std::vector<NamedCount<DiskFullCounts>> Fields();
  void Add(const DiskFullCounts& other);
  bool good() const { return rounds > 0 && wrong == 0; }
  nlohmann::ordered_json ToJson() const;
};

// Fills a real server's disk to the last byte and frees it again; pushes and pulls before, during and after. Each
// round ends with killing the server and comparing what its successor has. UNAVAILABLE if this process may not mount
// a disk. To be called by the main thread.
absl::StatusOr<DiskFullCounts> FillDisks(const DiskFullOptions& options);

}  // namespace ballast
