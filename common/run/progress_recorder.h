// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/run/metrics.h"
#include "common/run/run_folder.h"
#include "common/run/tensorboard_events.h"

namespace ballast {

// Owns the metrics.jsonl of a run and its events for TensorBoard, and writes a job's progress to them: each line,
// evaluation and epoch once. Does not know who trains. Thread safety: none.
class ProgressRecorder {
 public:
  // Creates metrics.jsonl, or appends to it. Errors are those of metrics.jsonl, here and below.
  static absl::StatusOr<ProgressRecorder> Open(const RunFolder& folder);

  // Continues the metrics of a job that an earlier process has begun: lines that it wrote are not written again.
  absl::Status Resume(const v1::JobProgress& progress);
  // Writes the newest line of the progress, unless it is written. `loss_scale` is worker 0's.
  absl::Status Train(const v1::JobProgress& progress, std::optional<float> loss_scale);
  absl::Status Test(const v1::Evaluation& evaluation, double seconds);
  // Writes the lines of the epochs that are done, up to `evaluated`, the number of epochs that were evaluated.
  absl::Status EndEpochs(const v1::JobProgress& progress, uint32_t evaluated);
  // Writes the staleness of all gradients, as the shards counted it until the end of the job.
  void Finish(const v1::JobProgress& progress, absl::Span<const v1::GetStatusResponse> shards);

 private:
  ProgressRecorder(const RunFolder& folder, MetricsWriter metrics)
      : path_(folder.metrics()), metrics_(std::move(metrics)), events_(folder.path()) {}

  std::string path_;
  MetricsWriter metrics_;
  TensorboardEvents events_;
  // Number of JobProgress.lines that are written.
  uint64_t lines_ = 0;
  // The last epoch that has a line, and the time and the examples of the job at its end.
  uint32_t epoch_ = 0;
  double epoch_end_ = 0;
  uint64_t epoch_examples_ = 0;
};

}  // namespace ballast
