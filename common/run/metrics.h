// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ballast {

// One "train" line of metrics.jsonl: the mean over the steps since the line before. Its fields are
// the file's columns, hence their number.
struct TrainMetrics {
  // From 1.
  int64_t epoch = 0;
  // Steps finished since the run began.
  int64_t step = 0;
  // Examples seen since the run began.
  int64_t examples = 0;
  // Since the run began.
  double seconds = 0;
  double loss = 0;
  double learning_rate = 0;
  // Of all workers together.
  double samples_per_second = 0;
  // Mean of version at apply minus version the gradient was computed from.
  double staleness = 0;
  // Part of the time spent waiting for others, 0 to 1.
  double wait_share = 0;
  // The rest is worker 0's. The largest staleness of a gradient since the line before.
  int64_t max_staleness = 0;
  // Of messages in a step, without what the network adds.
  double bytes_sent = 0;
  double bytes_received = 0;
  // Gradients of slices not used since the line before, for they came after their step.
  int64_t dropped = 0;
  // Batches not used since the line before, for their gradients overflowed; and what the loss is multiplied by, absent
  // where it is not.
  int64_t skipped_steps = 0;
  std::optional<double> loss_scale;
};

// One "test" line of metrics.jsonl: the evaluation after an epoch.
struct TestMetrics {
  int64_t epoch = 0;
  int64_t step = 0;
  double seconds = 0;
  double loss = 0;
  // 0 to 1; absent for a regression.
  std::optional<double> accuracy;
};

// What metrics.jsonl holds, in the file's order.
struct Metrics {
  std::vector<TrainMetrics> train;
  std::vector<TestMetrics> test;
  // Numbers, from 1, of lines that hold no metrics and were skipped.
  std::vector<int64_t> malformed_lines;
  // The file does not end in a newline and its last line was skipped: its writer died within it.
  bool cut_off = false;
};

}  // namespace ballast
