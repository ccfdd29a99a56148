// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "ballast/internal/v1/coordinator_state.pb.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/job.pb.h"

namespace ballast {

// INVALID_ARGUMENT if a report has figures that no worker of the job can have, because the sums of all workers would be
// spoiled for good. `epochs`: those of the job; 0 if it leases no data.
absl::Status CheckReport(const v1::WorkerProgress& progress, const v1::Evaluation* evaluation, uint32_t servers,
                         uint32_t epochs);

// Owns the sums of the workers' progress reports, over the whole job, the newest line and the newest epochs; see
// v1.JobProgress for these words. No sum starts over with a process. Knows neither members nor leases.
// Thread safety: none; the coordinator guards it.
class ProgressTracker {
 public:
  // `seconds` is the time that the job has run.
  void Report(uint32_t worker, uint64_t incarnation, const v1::WorkerProgress& progress, double seconds);
  void Evaluated(const v1::Evaluation& evaluation) { evaluation_ = evaluation; }
  const std::optional<v1::Evaluation>& evaluation() const { return evaluation_; }
  // `steps` and `batches` are the worker's totals at the end of a lease.
  void EndedLease(uint32_t worker, uint64_t steps, uint64_t batches);
  // Without worker 0, every report ends a line until it reports again.
  void Lose(uint32_t worker) { writer_lost_ |= worker == 0; }

  // Fills in epoch, step, the sums and what follows from them, and the evaluation.
  void Fill(v1::JobProgress& progress) const;

  uint64_t StepOf(uint32_t worker) const;
  // Batches up to the end of the worker's last lease.
  uint64_t BatchesOf(uint32_t worker) const;
  // The newest WorkerProgress.acknowledged_pushes of each incarnation.
  std::vector<v1::GetProgressResponse::WorkerPushes> Pushes() const;

  internal::v1::ProgressTrackerState Export() const;
  void Restore(const internal::v1::ProgressTrackerState& state);
  // The same for a job that resumes between two leases with `workers` workers: each at its own step if their number
  // is unchanged, otherwise all at the highest step. Earlier pushes no longer count.
  void Resume(internal::v1::ProgressTrackerState state, uint32_t workers);

 private:
  struct Worker {
    uint64_t step = 0;
    v1::WorkerProgress last;
    uint64_t lease_steps = 0;
    uint64_t lease_batches = 0;
  };
  void EndLine(double seconds);

  std::map<uint32_t, Worker> workers_;
  // Acknowledged pushes by shard, for each worker and incarnation.
  std::map<std::pair<uint32_t, uint64_t>, std::vector<uint64_t>> pushes_;
  v1::Work total_;
  // The newest line, and what was reported since; the time of the job at the line's end.
  v1::Work line_, open_line_;
  double line_seconds_ = 0;
  double line_end_ = 0;
  uint64_t lines_ = 0;
  bool writer_lost_ = false;
  std::map<uint32_t, v1::JobProgress::EpochWork> epochs_;
  double learning_rate_ = 0;
  std::optional<v1::Evaluation> evaluation_;
};

// Decides from the evaluations after each epoch if a job's training ends early: owns the metric's best value.
// Deliberately knows neither leases nor workers. Thread safety: none; the coordinator guards it.
class EarlyStop {
 public:
  explicit EarlyStop(const v1::EarlyStopping& options) : options_(options) {}

  // Ignores an epoch that was evaluated before: a retry counts once. A value that is not a number is no improvement.
  void Evaluated(const v1::Evaluation& evaluation);
  bool stops() const { return state_.last_epoch() >= state_.best_epoch() + options_.epochs(); }
  // The last epoch evaluated; 0: none yet.
  uint32_t last_epoch() const { return state_.last_epoch(); }
  // Returns "the test loss has not improved for 3 epochs; its best was 0.41 after epoch 7".
  std::string Reason() const;

  const internal::v1::EarlyStopState& state() const { return state_; }
  void Restore(const internal::v1::EarlyStopState& state) { state_ = state; }

 private:
  bool Improves(double value) const;

  const v1::EarlyStopping options_;
  internal::v1::EarlyStopState state_;
};

}  // namespace ballast
