// SPDX-License-Identifier: Apache-2.0
#include "common/run/progress_recorder.h"

#include <algorithm>

#include "common/metrics/histogram.h"
#include "common/text/number_text.h"

namespace ballast {
absl::StatusOr<ProgressRecorder> ProgressRecorder::Open(const RunFolder& folder) {
  absl::StatusOr<MetricsWriter> metrics = MetricsWriter::Open(folder.metrics());
  if (!metrics.ok()) return metrics.status();
  return ProgressRecorder(folder, *std::move(metrics));
}

absl::Status ProgressRecorder::Resume(const v1::JobProgress& progress) {
  lines_ = progress.lines();
  const absl::StatusOr<Metrics> metrics = ReadMetrics(path_);
  if (!metrics.ok()) return metrics.status();
  // In a new directory the lines begin here.
  const bool begins = metrics->train.empty() && metrics->test.empty() && metrics->epochs.empty();
  epoch_ = begins ? progress.epochs_done() : 0;
  epoch_end_ = begins ? progress.seconds() : 0;
  epoch_examples_ = begins ? progress.examples() : 0;
  for (const EpochMetrics& line : metrics->epochs) {
    // If the job has returned to a checkpoint, the epochs after it come again.
    if (line.epoch > progress.epochs_done()) continue;
    epoch_ = static_cast<uint32_t>(line.epoch);
    epoch_end_ = line.seconds;
    epoch_examples_ = line.examples;
  }
  return absl::OkStatus();
}

absl::Status ProgressRecorder::Train(const v1::JobProgress& progress, std::optional<float> loss_scale) {
  if (std::exchange(lines_, progress.lines()) == progress.lines()) return absl::OkStatus();
  const v1::Work& line = progress.line();
  TrainMetrics metrics;
  metrics.epoch = progress.epoch() + 1;
  metrics.step = progress.step();
  metrics.examples = progress.examples();
  metrics.seconds = progress.seconds();
  metrics.over_examples = line.examples();
  metrics.over_seconds = progress.line_seconds();
  metrics.loss = progress.train_loss();
  metrics.learning_rate = AsWritten(progress.learning_rate());
  metrics.samples_per_second = progress.samples_per_second();
  metrics.staleness = Mean(line.staleness_sum(), line.pushes());
  metrics.wait_share = progress.wait_share();
  metrics.max_staleness = line.max_staleness();
  metrics.bytes_sent = Mean(line.bytes_sent(), line.steps());
  metrics.bytes_received = Mean(line.bytes_received(), line.steps());
  metrics.dropped = line.dropped();
  metrics.skipped_steps = line.skipped();
  metrics.loss_scale = loss_scale;
  events_.Write(metrics);
  return metrics_.Write(metrics);
}

absl::Status ProgressRecorder::EndEpochs(const v1::JobProgress& progress, uint32_t evaluated) {
  const uint32_t done = std::min(progress.epochs_done(), evaluated);
  uint64_t examples = 0;
  for (const v1::JobProgress::EpochWork& epoch : progress.epoch_work()) {
    if (epoch.epoch() >= epoch_ && epoch.epoch() < done) examples += epoch.examples();
  }
  if (examples == 0) return absl::OkStatus();
  // Several epochs that end together share the time.
  const double seconds = progress.seconds() - epoch_end_;
  const double rate = Mean(static_cast<double>(progress.examples() - epoch_examples_), seconds);
  for (const v1::JobProgress::EpochWork& epoch : progress.epoch_work()) {
    if (epoch.epoch() < epoch_ || epoch.epoch() >= done) continue;
    epoch_ = epoch.epoch() + 1;
    epoch_end_ += seconds * epoch.examples() / examples;
    EpochMetrics metrics;
    metrics.epoch = epoch_;
    metrics.step = progress.step();
    metrics.examples = progress.examples();
    metrics.seconds = epoch_end_;
    metrics.epoch_examples = epoch.examples();
    metrics.train_loss = epoch.loss_sum() / epoch.examples();
    metrics.samples_per_second = rate;
    if (absl::Status status = metrics_.Write(metrics); !status.ok()) return status;
  }
  epoch_end_ = progress.seconds();
  epoch_examples_ = progress.examples();
  return absl::OkStatus();
}

absl::Status ProgressRecorder::Test(const v1::Evaluation& evaluation, double seconds) {
  TestMetrics metrics;
  metrics.epoch = evaluation.epoch();
  metrics.step = evaluation.step();
  metrics.seconds = seconds;
  metrics.loss = evaluation.loss();
  if (evaluation.has_accuracy()) metrics.accuracy = evaluation.accuracy();
  if (evaluation.has_auc()) {
    metrics.auc = evaluation.auc();
    metrics.log_loss = evaluation.loss();
  }
  if (evaluation.has_calibration()) metrics.calibration = evaluation.calibration();
  events_.Write(metrics);
  return metrics_.Write(metrics);
}

void ProgressRecorder::Finish(const v1::JobProgress& progress, absl::Span<const v1::GetStatusResponse> shards) {
  v1::Histogram staleness;
  for (const v1::GetStatusResponse& shard : shards) Merge(shard.staleness(), staleness);
  if (staleness.count() > 0) events_.Write(static_cast<int64_t>(progress.step()), staleness);
}

}  // namespace ballast
