// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace ballast {

// A small job with its own data: three classes of rows that a small network can separate.
struct JobPlan {
  std::string name;
  // Text as in the job file: "sync { deterministic: true }", "mode: WAL".
  std::string policy;
  std::string durability;
  uint32_t epochs = 1000000;
  uint32_t rows = 20000;
  // Units of its hidden layer; adam keeps three floats for each of about eight weights per unit.
  uint32_t units = 16;
  uint32_t batch_size = 8;
};

// Writes data and job file into the existing directory; returns the job file's path.
absl::StatusOr<std::string> WriteJobFolder(const std::string& folder, const JobPlan& plan);

}  // namespace ballast
