// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "client/coordinator_link.h"
#include "common/metrics/binary_scores.h"
#include "common/trace/timeline_recorder.h"
#include "worker/data/batch_stream.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/row_indexer.h"
#include "worker/model/trainable_model.h"
#include "worker/rows/row_exchange.h"
#include "worker/rows/row_source.h"
#include "worker/training/lease_ends.h"
#include "worker/training/parameter_exchange.h"
#include "worker/training/run_recorder.h"
#include "worker/training/worker_metrics.h"

namespace ballast {

// Evaluates a model on a whole data set, in order and without dropout. Thread safety: none.
class Evaluator {
 public:
  // All must outlive this; the model takes batches of `batch_size`. `rows` is null for a model without tables.
  Evaluator(const Dataset* dataset, TrainableModel* model, RowSource* rows, int64_t batch_size);

  // Sets the mean loss; the accuracy if the model classifies; AUC and calibration if it predicts a probability, and the
  // best AUC possible if the data set knows it. Rows are those of FetchForEvaluation at `step`.
  absl::StatusOr<v1::Evaluation> Evaluate(uint64_t step);

 private:
  // Reads examples [begin, begin + examples) and evaluates them.
  absl::StatusOr<BatchResult> EvaluateBatch(uint64_t begin, uint64_t examples, uint64_t step);

  const Dataset* const dataset_;
  TrainableModel* const model_;
  RowSource* const rows_;
  const int64_t batch_size_;
  // Found by the first evaluation.
  std::optional<std::optional<double>> bayes_auc_;
  // Memory for a batch.
  std::vector<uint64_t> indices_;
  std::vector<float> features_, labels_, outputs_;
  IdBags ids_;
  RowIndexer indexer_;
  std::vector<BatchRows> batch_rows_;
  // Scores of all examples so far; empty unless the model predicts a probability.
  std::vector<BinaryScore> scores_;
};

// Returns the fields of ids that each table of the model uses.
std::vector<std::vector<size_t>> FieldsOfTables(const TrainableModel& model);

// Rule by which a worker rejoins the others' steps after they did not wait for it, because it paused or returned.
enum class Stride {
  // It keeps its own step count: policies async and bounded.
  kOwn,
  // It continues at the newest step: policy sync with a quorum below the number of workers.
  kNewest,
  // Each step takes one gradient of every worker, so it continues only once all its tensors are at the same step.
  kTogether,
};

// Runs a worker's training from its first step to its last: takes batches, computes gradients, exchanges them for
// values and reports progress. Thread safety: none; one thread runs it.
class TrainingLoop {
 public:
  // All must outlive the loop. `evaluator` is null except on rank 0 with a test set, `recorder` except on rank 0.
  struct Parts {
    TrainableModel* model = nullptr;
    ParameterExchange* exchange = nullptr;
    // Null for a model without tables.
    RowExchange* rows = nullptr;
    BatchStream* batches = nullptr;
    CoordinatorLink* coordinator = nullptr;
    Evaluator* evaluator = nullptr;
    RunRecorder* recorder = nullptr;
  };
  struct Options {
    uint32_t epochs = 1;
    uint32_t report_every_steps = 10;
    // Batches of one step; the last step of a lease may have fewer.
    uint64_t batches_per_step = 1;
    // Pause at the servers while no data is available, so that other workers do not wait for this one.
    bool pauses = false;
    Stride stride = Stride::kOwn;
    // True if an earlier process of this rank made `first_step` steps.
    bool returns = false;
    uint64_t first_step = 0;
    // True if the whole job resumes from a checkpoint, in which this rank had made `first_batch` batches. All workers
    // are then at the steps of the checkpoint, so none needs to catch up.
    bool resumes = false;
    uint64_t first_batch = 0;
    // Seed for dropout; differs for each worker.
    uint64_t seed = 0;
    // Another thread sets it to end the loop after the current step.
    const std::atomic<bool>* interrupted = nullptr;
    // Records steps and waits for data; may be null.
    TimelineRecorder* timeline = nullptr;
    // Gets the worker's figures; may be null.
    WorkerMetrics* metrics = nullptr;
  };

  TrainingLoop(const Parts& parts, const Options& options)
      : parts_(parts),
        options_(options),
        step_(options.first_step),
        away_(options.returns),
        batches_(options.first_batch),
        lease_ends_(parts.coordinator) {}

  // Trains until all data of the job is done or the loop is interrupted. Without an interruption, the model then holds
  // the values of the last update.
  absl::Status Run();

  // Progress at the last report.
  const v1::JobProgress& progress() const { return progress_; }

 private:
  // Counts since the last report.
  struct Tally {
    // Not set until the first batch: until then the job gathers.
    absl::Time since = absl::InfiniteFuture();
    uint32_t epoch = 0;
    uint64_t examples = 0;
    double loss_sum = 0;
  };

  absl::StatusOr<std::optional<Batch>> NextBatch();
  // Fetches the rows of a batch, if the model has tables.
  absl::StatusOr<absl::Span<const RowsView>> FetchRows(const Batch& batch);
  // Begins to fetch the rows of the next batch, if it is ready and is of `step`.
  absl::Status PrefetchRows(uint64_t step);
  absl::Status PassEmptyBatch(bool last_of_step);
  // Waits for all pushes in flight.
  absl::Status AwaitAll();
  // Pulls the newest values and reaches the others' step, after a time in which no one waited for this worker.
  absl::Status CatchUp();
  // Fetches the job's progress for a worker that returns or resumes.
  absl::Status LearnProgress();
  absl::Status Train(const Batch& batch);
  // All data of that many epochs is done, and nobody trains until worker 0 has evaluated them.
  absl::Status EndOpenEpoch(uint32_t epochs_done);
  absl::Status AwaitData();
  // Completes the batch's lease, or keeps it as the done lease until the next batch has been trained.
  absl::Status EndLease(const Batch& batch);
  // Begins to report and complete the done lease, if there is one. Its pushes must have been acknowledged.
  void BeginLeaseEnd();
  // Waits until that is done, or the report that has begun, and learns and records the job's progress.
  absl::Status AwaitLeaseEnd();
  // What the recorder needs besides the progress that a report returns.
  struct Reported {
    std::optional<float> loss_scale;
    uint32_t epoch = 0;
    std::optional<v1::Evaluation> evaluation;
  };
  // Begins to report what has not been reported, while training goes on.
  absl::Status BeginReport(std::optional<v1::Evaluation> evaluation);
  absl::Status Record(const Reported& reported);
  absl::Status EndEpoch(uint32_t epochs_done);
  absl::Status EndJob();
  // Returns the figures of both exchanges since the last call.
  ExchangeStats TakeStats();
  void SetAcknowledgedPushes(v1::WorkerProgress& progress) const;
  // Returns the progress since the last call; `stats` are those since then.
  v1::WorkerProgress TakeTally(const ExchangeStats& stats);
  // Reports, and waits for the response.
  absl::Status Report(std::optional<v1::Evaluation> evaluation);

  const Parts parts_;
  const Options options_;
  // Number of pushes made.
  uint64_t step_ = 0;
  // True while no one waits for this worker.
  bool away_ = false;
  // Batches taken from all leases, and for the current step.
  uint64_t batches_ = 0;
  uint64_t batches_of_step_ = 0;
  // When the step began to wait for its first batch.
  absl::Time step_began_;
  uint32_t epoch_ = 0;
  // Steps since the last line of the run's metrics.
  uint64_t unrecorded_steps_ = 0;
  Tally tally_;
  // Set while a report is under way that is to be recorded.
  std::optional<Reported> reported_;
  // The lease whose last pushes may be in flight.
  std::optional<DoneLease> done_lease_;
  v1::JobProgress progress_;
  LeaseEnds lease_ends_;
};

}  // namespace ballast
