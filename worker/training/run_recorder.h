// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/job.pb.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/metrics/memory_bytes.h"
#include "common/run/model_description.h"
#include "common/run/progress_recorder.h"
#include "common/run/run_folder.h"
#include "common/run/summary.h"
#include "worker/model/trainable_model.h"

namespace ballast {

// Owns a run's directory and writes metrics during the job, and the model and the summary at its end. All its figures
// come from the job's progress, which the coordinator sums up over all workers and processes. Only rank 0 has one.
// Thread safety: none; the training loop's thread calls it.
class RunRecorder {
 public:
  struct Options {
    // Empty: runs/<job>-<time>.
    std::string run_dir;
    v1::Job job;
    // Relative paths in the job are relative to it.
    std::string job_folder;
    uint32_t servers = 0;
    uint32_t workers = 0;
    std::string device;
    // Memory of rank 0.
    MemoryBytes memory;
    // Continue in a run directory that an earlier process of this rank has created.
    bool resumes = false;
    // Written into the model's file.
    ModelDescription description = {};
  };

  static absl::StatusOr<RunRecorder> Create(Options options);

  // Continues the metrics of a job that an earlier process has begun: lines that it wrote are not written again.
  absl::Status Resume(const v1::JobProgress& progress) { return metrics_.Resume(progress); }
  // Writes the newest line of the progress, unless it is written. `loss_scale` is worker 0's.
  absl::Status Train(const v1::JobProgress& progress, std::optional<float> loss_scale);
  absl::Status Test(const v1::Evaluation& evaluation, double seconds) { return metrics_.Test(evaluation, seconds); }
  // Writes the lines of the epochs that are done, up to `evaluated`, the number of epochs that worker 0 has ended.
  absl::Status EndEpochs(const v1::JobProgress& progress, uint32_t evaluated) {
    return metrics_.EndEpochs(progress, evaluated);
  }
  // Writes the model if Training.keep_best is set and this evaluation of it is the best so far.
  absl::Status KeepBest(TrainableModel& model, const v1::Evaluation& evaluation, const v1::JobProgress& progress);

  // Final counts over all workers, from the coordinator and the shards; empty if they did not respond. Final peaks of
  // this worker's GPUs.
  struct Totals {
    // Fetched before `shards`.
    std::optional<v1::GetProgressResponse> reported;
    std::vector<v1::GetStatusResponse> shards;
    // Summary.gpu_peak_bytes.
    std::vector<int64_t> gpu_peak_bytes;
  };

  // Writes the current model, unless a better one is kept, and the summary.
  absl::Status Finish(TrainableModel& model, const v1::JobProgress& progress, const Totals& totals, bool interrupted);

  const RunFolder& folder() const { return folder_; }

 private:
  RunRecorder(Options options, RunFolder folder, ProgressRecorder metrics)
      : options_(std::move(options)), folder_(std::move(folder)), metrics_(std::move(metrics)) {}
  // With `evaluation`, the file's metadata has its epoch and results.
  absl::Status WriteModel(TrainableModel& model, const v1::JobProgress& progress, const v1::Evaluation* evaluation);
  // Finds the best model that an earlier process of this rank has kept.
  void FindBest();

  Summary Summarize(const v1::JobProgress& progress) const;

  Options options_;
  RunFolder folder_;
  ProgressRecorder metrics_;
  std::optional<float> loss_scale_;
  // The evaluation of the model in the run's directory, if it is kept.
  std::optional<v1::Evaluation> best_;
};

}  // namespace ballast
