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

// One "train" line of metrics.jsonl: means over the work of all workers since the previous line. Size: the fields are
// the file's columns.
struct TrainMetrics {
  // Counts from 1.
  int64_t epoch = 0;
  // Steps of the furthest worker since the run began.
  int64_t step = 0;
  // Examples seen since the run began.
  int64_t examples = 0;
  // Seconds since the run began.
  double seconds = 0;
  // Span of the line: examples and seconds since the previous line. 0 in a file of an earlier release.
  int64_t over_examples = 0;
  double over_seconds = 0;
  // Mean over those examples.
  double loss = 0;
  double learning_rate = 0;
  // Those examples per second.
  double samples_per_second = 0;
  // Mean over the pushes since the previous line. The staleness of a push is the largest of its slices: the version at
  // apply minus the version that the gradient was computed from.
  double staleness = 0;
  // Fraction of the workers' time since the previous line that they spent waiting for servers, 0 to 1.
  double wait_share = 0;
  // Maximum over those pushes.
  int64_t max_staleness = 0;
  // Message bytes per step of a worker, without network overhead.
  double bytes_sent = 0;
  double bytes_received = 0;
  // Slice gradients dropped since the previous line because they arrived after their step.
  int64_t dropped = 0;
  // Batches skipped since the previous line because their gradients overflowed, and the factor by which worker 0 scales
  // the loss; nullopt if it is not scaled.
  int64_t skipped_steps = 0;
  std::optional<double> loss_scale;
};

// One "epoch" line of metrics.jsonl, written once all examples of the epoch were reported and worker 0 has evaluated
// it.
struct EpochMetrics {
  // Counts from 1.
  int64_t epoch = 0;
  // The same as in TrainMetrics.
  int64_t step = 0;
  int64_t examples = 0;
  double seconds = 0;
  // The epoch's examples, and the mean of the training loss over them.
  int64_t epoch_examples = 0;
  double train_loss = 0;
  // Examples of the job per second since the previous epoch's line, evaluation included.
  double samples_per_second = 0;
};

// One "test" line of metrics.jsonl: the evaluation after an epoch.
struct TestMetrics {
  int64_t epoch = 0;
  int64_t step = 0;
  double seconds = 0;
  double loss = 0;
  // Fraction from 0 to 1; nullopt for a regression.
  std::optional<double> accuracy;
  // Results for predictions of one of two labels: the area under the ROC curve, the loss under its usual name, and the
  // sum of the predicted probabilities divided by the number of labels 1. nullopt for other models.
  std::optional<double> auc;
  std::optional<double> log_loss;
  std::optional<double> calibration;
};

// Contents of metrics.jsonl, in the order of the file.
struct Metrics {
  std::vector<TrainMetrics> train;
  std::vector<TestMetrics> test;
  std::vector<EpochMetrics> epochs;
  // Numbers, from 1, of skipped lines that hold no metrics.
  std::vector<int64_t> malformed_lines;
  // True if the file does not end in a newline, so that its last line was skipped: its writer died while writing it.
  bool cut_off = false;
};

// Returns sum / count; 0 of no elements.
inline double Mean(double sum, double count) { return count > 0 ? sum / count : 0; }

// Parses the output of MetricsWriter. A line that holds no metrics is skipped and counted, never an error: a crash
// may truncate the last one, and the lines before it are still useful. Unknown kinds and keys are ignored. null
// numbers are NaN. If the job returned to a checkpoint or to its beginning, the lines that it undid are left out.
Metrics ParseMetrics(absl::string_view text);

// Reads a growing metrics.jsonl piece by piece. Thread safety: none.
class MetricsTail {
 public:
  explicit MetricsTail(std::string path) : path_(std::move(path)) {}

  // Returns the complete lines since the previous call; none if there is no file yet.
  Metrics Next();

 private:
  const std::string path_;
  int64_t offset_ = 0;
};

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
  absl::Status Write(const EpochMetrics& metrics);

 private:
  MetricsWriter(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_;
};

}  // namespace ballast
