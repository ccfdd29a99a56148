// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/run/metrics.h"

namespace ballast {

// One epoch of a run, from its lines of metrics.jsonl.
struct EpochRow {
  int64_t epoch = 0;
  // The last step of the epoch.
  int64_t step = 0;
  // Time since the end of the previous row.
  double seconds = 0;
  // Means over the epoch's training lines; absent if there are none.
  std::optional<double> train_loss;
  std::optional<double> samples_per_second;
  std::optional<double> test_loss;
  std::optional<double> test_accuracy;
};

// Returns the rows in the order of epochs.
std::vector<EpochRow> EpochRows(const Metrics& metrics);

// Returns a <section> with the table, in which the best test accuracy is marked; empty if there are no rows.
std::string RenderEpochTable(const std::vector<EpochRow>& rows);

}  // namespace ballast
