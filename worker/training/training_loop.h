// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "client/coordinator_link.h"
#include "common/trace/timeline_recorder.h"
#include "worker/data/batch_stream.h"
#include "worker/model/trainable_model.h"
#include "worker/training/evaluator.h"
#include "worker/training/parameter_exchange.h"
#include "worker/training/run_recorder.h"

namespace ballast {

// Whether a worker that was not waited for, since it paused or returned, must get back into the others' step.
enum class Stride {
  // Its steps are its own: asynchronous and bounded.
  kOwn,
  // It goes by the newest step: the others wait for some of the workers only.
  kNewest,
  // A step waits for every worker, and takes one gradient of each: it goes on where all its tensors are at one step.
  kTogether,
};

// Takes batches, computes gradients, exchanges them for weights, reports; from a worker's first step to its last.
// Thread safety: none; one thread runs it.
class TrainingLoop {
 public:
  // All outlive the loop. Null where the worker has none: only rank 0 evaluates, where there is a test set, and
  // records.
  struct Parts {
    TrainableModel* model = nullptr;
    ParameterExchange* exchange = nullptr;
    BatchStream* batches = nullptr;
    CoordinatorLink* coordinator = nullptr;
    Evaluator* evaluator = nullptr;
    RunRecorder* recorder = nullptr;
  };
  struct Options {
    uint32_t epochs = 1;
    uint32_t report_every_steps = 10;
    // That make one step; fewer at the end of a lease.
    uint64_t batches_per_step = 1;
    // Tell the servers when there is nothing to train on for a while: others may wait for this worker's steps.
    bool pauses = false;
    Stride stride = Stride::kOwn;
    // Another process of this rank was here before, and made so many steps.
    bool returns = false;
    uint64_t first_step = 0;
    // The whole job goes on from a checkpoint, where this rank had made so many batches, and all were at their steps.
    bool resumes = false;
    uint64_t first_batch = 0;
    // Of dropout, apart for each worker.
    uint64_t seed = 0;
    // Set from outside to end after the step under way.
    const std::atomic<bool>* interrupted = nullptr;
    // Where steps and waits for data are noted; null: nowhere.
    TimelineRecorder* timeline = nullptr;
  };

  TrainingLoop(const Parts& parts, const Options& options)
      : parts_(parts),
        options_(options),
        step_(options.first_step),
        away_(options.returns),
        batches_(options.first_batch) {}

  // Until all data of the job is done, or interrupted. Weights are then those of the last update.
  absl::Status Run();

  // As of the last report.
  const v1::JobProgress& progress() const { return progress_; }

 private:
  // Since the last report.
  struct Tally {
    absl::Time since;
    uint64_t examples = 0;
    double loss_sum = 0;
  };

  absl::StatusOr<std::optional<Batch>> NextBatch();
  // After a time in which nobody waited for this worker: the newest weights, and the others' step.
  absl::Status CatchUp();
  // Where the job is when a worker returns to it.
  absl::Status LearnProgress();
  absl::Status Train(const Batch& batch);
  absl::Status AwaitData();
  absl::Status EndLease(const Batch& batch);
  absl::Status EndEpoch(uint32_t epochs_done);
  absl::Status EndJob();
  // What there is to report of the steps since the last time, apart from the exchange.
  v1::WorkerProgress TakeTally();
  absl::Status Report(const v1::Evaluation* evaluation);

  const Parts parts_;
  const Options options_;
  // Pushes made, and batches taken: of all leases, and of the step under way.
  uint64_t step_ = 0;
  // Nobody waits for this worker.
  bool away_ = false;
  uint64_t batches_ = 0;
  uint64_t batches_of_step_ = 0;
  uint32_t epoch_ = 0;
  // Since the last line of the run's metrics.
  uint64_t unrecorded_steps_ = 0;
  Tally tally_;
  v1::JobProgress progress_;
};

}  // namespace ballast
