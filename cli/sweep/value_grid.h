// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ballast {

// One combination of values.
struct GridPoint {
  // Field and value of each setting, in the order of the settings.
  std::vector<std::pair<std::string, std::string>> settings;
  // The settings that differ between points, with the last part of each field's path: "learning_rate=0.01 units=64".
  // Unique. Empty if there is one point.
  std::string name;
};

// More points are refused: they are more likely a mistake than wanted.
inline constexpr size_t kMaxGridPoints = 1000;

// Returns every combination of the values of settings such as "optimizer.sgd.learning_rate=0.1,0.2"; the values of the
// last setting change fastest. Commas separate values, except in quotes and in brackets: "[3,5],[5,5]" are two values.
// INVALID_ARGUMENT names the setting.
absl::StatusOr<std::vector<GridPoint>> MakeGrid(absl::Span<const std::string> settings);

}  // namespace ballast
