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
#include "common/run/metrics_writer.h"
#include "common/run/run_folder.h"
#include "common/run/summary.h"
#include "worker/model/trainable_model.h"
#include "worker/training/parameter_exchange.h"

namespace ballast {

// Writes what a run leaves in its folder, as the job goes on and at its end. Rank 0 has one.
// Thread safety: none; the training loop's thread.
class RunRecorder {
 public:
  struct Options {
    // Empty: runs/<job>-<time>.
    std::string run_dir;
    v1::Job job;
    uint32_t servers = 0;
    uint32_t workers = 0;
    std::string device;
    // Of rank 0.
    MemoryBytes memory;
    // Goes on in a run folder that holds a run: that of a process of this rank before.
    bool resumes = false;
  };

  static absl::StatusOr<RunRecorder> Create(Options options);

  // For the summary's totals: whatever the exchange has cost, once.
  void Count(const ExchangeStats& stats);
  absl::Status Train(const v1::JobProgress& progress, const ExchangeStats& stats);
  absl::Status Test(const v1::Evaluation& evaluation, double seconds);

  // What shards and coordinator say of all workers in the end; empty where they did not answer.
  struct Totals {
    // Asked first.
    std::optional<v1::GetProgressResponse> reported;
    std::vector<v1::GetStatusResponse> shards;
  };

  // Writes the model as it stands and the summary.
  absl::Status Finish(TrainableModel& model, const v1::JobProgress& progress, const Totals& totals, bool interrupted);

  const RunFolder& folder() const { return folder_; }

 private:
  RunRecorder(Options options, RunFolder folder, MetricsWriter metrics)
      : options_(std::move(options)), folder_(std::move(folder)), metrics_(std::move(metrics)) {}
  absl::Status WriteModel(TrainableModel& model, const v1::JobProgress& progress);

  Summary Summarize(const v1::JobProgress& progress) const;

  Options options_;
  RunFolder folder_;
  MetricsWriter metrics_;
  ExchangeStats total_;
};

}  // namespace ballast
