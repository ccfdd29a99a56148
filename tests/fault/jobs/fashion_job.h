// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace ballast {

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
