// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "common/run/metrics.h"

namespace ballast {

// Owns the metrics.jsonl of a run, and writes a job's progress to it: each line, evaluation and epoch once. Does not
// know who trains. Thread safety: none.
class ProgressRecorder {
 public:
  // Creates the file, or appends to it.
  static absl::StatusOr<ProgressRecorder> Open(const std::string& path);

  // Continues the metrics of a job that an earlier process has begun: lines that it wrote are not written again.
  absl::Status Resume(const v1::JobProgress& progress);
  // Writes the newest line of the progress, unless it is written. `loss_scale` is worker 0's.
  absl::Status Train(const v1::JobProgress& progress, std::optional<float> loss_scale);
  absl::Status Test(const v1::Evaluation& evaluation, double seconds);
  // Writes the lines of the epochs that are done, up to `evaluated`, the number of epochs that were evaluated.
  absl::Status EndEpochs(const v1::JobProgress& progress, uint32_t evaluated);

 private:
  ProgressRecorder(std::string path, MetricsWriter metrics) : path_(std::move(path)), metrics_(std::move(metrics)) {}

  std::string path_;
  MetricsWriter metrics_;
  // Number of JobProgress.lines that are written.
  uint64_t lines_ = 0;
  // The last epoch that has a line, and the time and the examples of the job at its end.
  uint32_t epoch_ = 0;
  double epoch_end_ = 0;
  uint64_t epoch_examples_ = 0;
};

}  // namespace ballast
