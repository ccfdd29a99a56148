// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast {

// One "train" line of metrics.jsonl: means over the steps since the previous line. The fields are the file's columns,
// hence their number.
struct TrainMetrics {
  // Counts from 1.
  int64_t epoch = 0;
  // Steps finished since the run began.
  int64_t step = 0;
  // Examples seen since the run began.
  int64_t examples = 0;
  // Seconds since the run began.
  double seconds = 0;
  double loss = 0;
  double learning_rate = 0;
  // All workers together.
  double samples_per_second = 0;
  // Mean over gradients of the version at apply minus the version that the gradient was computed from.
  double staleness = 0;
  // Fraction of time spent waiting for other members, 0 to 1.
  double wait_share = 0;
  // The remaining fields are worker 0's. Largest staleness of a gradient since the previous line.
  int64_t max_staleness = 0;
  // Message bytes per step, without network overhead.
  double bytes_sent = 0;
  double bytes_received = 0;
  // Slice gradients dropped since the previous line because they arrived after their step.
  int64_t dropped = 0;
  // Batches skipped since the previous line because their gradients overflowed, and the factor by which the loss is
  // scaled; nullopt if it is not scaled.
  int64_t skipped_steps = 0;
  std::optional<double> loss_scale;
};

// One "test" line of metrics.jsonl: the evaluation after an epoch.
struct TestMetrics {
  int64_t epoch = 0;
  int64_t step = 0;
  double seconds = 0;
  double loss = 0;
  // Fraction from 0 to 1; nullopt for a regression.
  std::optional<double> accuracy;
};

// Contents of metrics.jsonl, in the order of the file.
struct Metrics {
  std::vector<TrainMetrics> train;
  std::vector<TestMetrics> test;
  // Numbers, from 1, of skipped lines that hold no metrics.
  std::vector<int64_t> malformed_lines;
  // True if the file does not end in a newline, so that its last line was skipped: its writer died while writing it.
  bool cut_off = false;
};

// Parses the output of MetricsWriter. A line that holds no metrics is skipped and counted, never an error: a crash
// may truncate the last one, and the lines before it are still useful. Unknown kinds and keys are ignored. null
// numbers are NaN.
Metrics ParseMetrics(absl::string_view text);

// NOT_FOUND if the file does not exist.
absl::StatusOr<Metrics> ReadMetrics(const std::string& path);

// Owns the open metrics.jsonl of one run and appends lines to it. Each line is passed to the kernel before the call
// returns, so it survives the process but not a crash of the host. NaN and infinities are written as null. After an
// error the file may end in part of a line, which the reader skips. Thread safety: none; one thread writes.
class MetricsWriter {
 public:
  // Creates the file, or appends to it.
  static absl::StatusOr<MetricsWriter> Open(const std::string& path);

  MetricsWriter(MetricsWriter&& other) noexcept;
  MetricsWriter& operator=(MetricsWriter&& other) noexcept;
  ~MetricsWriter();

  // Errors name the file: RESOURCE_EXHAUSTED if the disk is full.
  absl::Status Write(const TrainMetrics& metrics);
  absl::Status Write(const TestMetrics& metrics);

 private:
  MetricsWriter(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_;
};

}  // namespace ballast
