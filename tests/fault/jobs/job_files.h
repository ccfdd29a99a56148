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

// A small network on Fashion-MNIST in deterministic sync mode: the job gives the same weights on every run.
struct FashionJobPlan {
  std::string name;
  uint32_t epochs = 1000000;
  // Text as in the job file: "schedule { cosine {} }", "return_seconds: 300".
  std::string schedule;
  std::string durability;
};

// UNAVAILABLE if the data is not installed.
absl::Status FindFashionData();

std::string FashionJobText(const FashionJobPlan& plan);

}  // namespace ballast
