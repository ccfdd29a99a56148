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
  // The last one seen.
  int64_t step = 0;
  // Since the end of the row before.
  double seconds = 0;
  // Means over the epoch's training lines; absent where it has none.
  std::optional<double> train_loss;
  std::optional<double> samples_per_second;
  std::optional<double> test_loss;
  std::optional<double> test_accuracy;
};

// By rising epoch.
std::vector<EpochRow> EpochRows(const Metrics& metrics);

// A <section> with the table, the row of the best test accuracy marked; empty where there are no rows.
std::string RenderEpochTable(const std::vector<EpochRow>& rows);

}  // namespace ballast
