// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/job.pb.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/metrics/memory_bytes.h"
#include "common/run/metrics.h"
#include "common/run/model_description.h"
#include "common/run/run_folder.h"
#include "common/run/summary.h"
#include "worker/model/trainable_model.h"

namespace ballast {

// Adds the distributions of staleness and waits that the shards counted to a run's summary, the time since when, and
// the rows of all tables, if there are tables.
void AddShards(absl::Span<const v1::GetStatusResponse> shards, Summary& summary);

// Compares the pushes that workers reported as acknowledged with those that the shards accepted, and sets the summary's
// pushes_lost, pushes_lost_by_shard and pushes_duplicated. `reported` must be fetched before `shards`. Acknowledgements
// that a worker had not reported before it died are not counted.
void AddPushes(const v1::GetProgressResponse& reported, absl::Span<const v1::GetStatusResponse> shards,
               Summary& summary);

// Returns one line that names the shards that lost acknowledged pushes and how many; empty if none did.
std::string DescribeLosses(const Summary& summary);

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
  absl::Status Resume(const v1::JobProgress& progress);
  // Writes the newest line of the progress, unless it is written. `loss_scale` is worker 0's.
  absl::Status Train(const v1::JobProgress& progress, std::optional<float> loss_scale);
  absl::Status Test(const v1::Evaluation& evaluation, double seconds);
  // Writes the lines of the epochs that are done, up to `evaluated`, the number of epochs that worker 0 has ended.
  absl::Status EndEpochs(const v1::JobProgress& progress, uint32_t evaluated);
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
  RunRecorder(Options options, RunFolder folder, MetricsWriter metrics)
      : options_(std::move(options)), folder_(std::move(folder)), metrics_(std::move(metrics)) {}
  // With `evaluation`, the file's metadata has its epoch and results.
  absl::Status WriteModel(TrainableModel& model, const v1::JobProgress& progress, const v1::Evaluation* evaluation);
  // Finds the best model that an earlier process of this rank has kept.
  void FindBest();

  Summary Summarize(const v1::JobProgress& progress) const;

  Options options_;
  RunFolder folder_;
  MetricsWriter metrics_;
  // Number of JobProgress.lines that are written.
  uint64_t lines_ = 0;
  // The last epoch that has a line, and the time and the examples of the job at its end.
  uint32_t epoch_ = 0;
  double epoch_end_ = 0;
  uint64_t epoch_examples_ = 0;
  std::optional<float> loss_scale_;
  // The evaluation of the model in the run's directory, if it is kept.
  std::optional<v1::Evaluation> best_;
};

}  // namespace ballast
