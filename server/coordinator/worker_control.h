// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/coordinator_state.pb.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/job.pb.h"
#include "server/coordinator/job_status.h"
#include "server/coordinator/lease_table.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/progress_tracker.h"

namespace ballast {

// Decides what each worker works on: owns the job that the workers bring, the leases of its data, and their progress.
// Invariant: all workers have the same job. Deliberately knows neither servers nor what a loss means to the job.
// Thread safety: none; the coordinator guards it.
class WorkerControl {
 public:
  // The state from which a joining worker starts.
  struct Beginning {
    uint64_t steps = 0;
    // Set if the job resumed from a checkpoint and this is the first worker of its rank since.
    std::optional<uint64_t> resumed_batches;
  };
  // The result of Acquire: a lease, or `finished`, or the epochs whose evaluation the job awaits, or what the call was
  // waiting for when its time ran out. From a stream a lease, `finished`, or the position to look for rows.
  struct Grant {
    std::optional<DataLease> lease;
    std::optional<StreamPosition> stream_position;
    uint64_t max_stream_examples = 0;
    bool finished = false;
    // See AcquireLeaseResponse.
    uint32_t epochs_done = 0;
    std::string waiting_for;
  };

  // All arguments must outlive this.
  WorkerControl(const JobOptions& options, Membership* members, JobStatus* status)
      : options_(options), members_(*members), status_(*status) {}

  // Makes every check that may refuse a worker at that rank; changes nothing.
  absl::StatusOr<Admission> CheckJoin(const Newcomer& worker, std::optional<uint32_t> rank) const;
  // The first worker's job becomes the coordinator's.
  void Adopt(Newcomer& worker);
  // A new process has the rank of an earlier one.
  void OnReturn(uint32_t rank);
  // Takes back the leases of a lost worker.
  void Lose(uint32_t rank);
  // FAILED_PRECONDITION if a program's tensors cannot be placed for that job, which must be the held one, if any.
  absl::Status CheckPlacement(absl::string_view job) const;
  // Sets the job of the first placement, which CheckPlacement accepts.
  void NameJob(absl::string_view name) { job_name_ = std::string(name); }

  const std::string& job_name() const { return job_name_; }
  // The default until a worker has joined.
  const v1::Durability& durability() const {
    return job_.has_value() ? job_->durability() : v1::Durability::default_instance();
  }
  // True if the coordinator hands out the job's data.
  bool leases_data() const { return leases_.has_value(); }
  bool all_done() const { return leases_.has_value() && leases_->Finished(); }
  // True if a worker has asked for data. Before that, it declares the model to every shard.
  bool model_declared() const { return model_declared_; }
  // Hands out no data beyond the place where all ranks meet, until ReleaseData.
  void HoldData();
  void ReleaseData();
  // True if no data is held, or none is handed out.
  bool at_rest() const { return !leases_.has_value() || leases_->AtRest(); }
  // At least 1.
  uint32_t epochs_begun() const;
  // True if the job began from the checkpoint in the options.
  bool resumed() const { return options_.resume.has_value() && options_.resume->id() == resumed_from_; }

  // Returns the immediate result of a call for a lease, which counts as a heartbeat; nothing if the call must wait.
  // ABORTED if the job has failed. `held` lists the leases that the worker has received and not reported done. A
  // waiting call checks again without a time: its worker may have been lost meanwhile, and this is no heartbeat.
  // `epochs_done` is the highest Grant::epochs_done that the worker has received, `found` the rows of a stream that it
  // wants to lease, or a position where it has found none.
  std::optional<absl::StatusOr<Grant>> Acquire(const Membership::Id& id, absl::Span<const uint64_t> held,
                                               std::optional<absl::Time> now, uint32_t epochs_done = 0,
                                               const std::optional<StreamSpan>& found = std::nullopt);
  absl::Status Complete(const Membership::Id& id, uint64_t lease, uint64_t steps, uint64_t batches, absl::Time now);
  absl::Status Report(const Membership::Id& id, const v1::WorkerProgress& progress, const v1::Evaluation* evaluation,
                      absl::Time now);
  // Names what a waiting call waits for.
  std::string ExplainWait() const;

  Beginning BeginningOf(const Membership::Id& worker) const;
  const ProgressTracker& progress() const { return progress_; }
  void Fill(v1::JobProgress& progress) const;
  // Sets the job, its data and its progress.
  void FillManifest(internal::v1::CheckpointManifest& manifest) const;
  void Export(internal::v1::CoordinatorState& state) const;
  absl::Status Restore(const internal::v1::CoordinatorState& state);

 private:
  // Returns false for a job without a model, data and examples: its workers bring their own data and know when they
  // are done.
  static bool LeasesData(const v1::Job& job, uint64_t train_examples);
  absl::Status CheckJob(const Newcomer& worker) const;
  LeaseTable::Options LeaseOptions(const v1::Job& job, uint64_t train_examples) const;
  absl::Status CannotResume(absl::string_view why) const;
  // Returns the leases of a new job, if its data is handed out; FAILED_PRECONDITION if it cannot resume.
  absl::StatusOr<std::optional<LeaseTable>> BeginLeases(const v1::Job& job, uint64_t train_examples) const;
  // In lock step, an epoch begins once worker 0 has evaluated the one before, so that the training ends between two
  // epochs. Without worker 0 nobody waits for that.
  void OpenEpochs();
  // Completes a grant from a stream, without a lease so far.
  absl::StatusOr<Grant> AcquireFromStream(uint32_t rank, const std::optional<StreamSpan>& found,
                                          std::optional<absl::Time> now, Grant grant);
  // Begins to watch the evaluations, if the job's training may end early, from the state saved, if any.
  void WatchEvaluations(const internal::v1::EarlyStopState* saved);
  // Ends the training if its evaluations say so.
  void EndEarly();
  // True if the training has ended before its last epoch.
  bool stopped_early() const;
  absl::Status CheckWorker(const Membership::Id& id, absl::Time now);

  const JobOptions& options_;
  Membership& members_;
  JobStatus& status_;
  // Set by a worker's Join or by the first placement, whichever comes first.
  std::string job_name_;
  std::optional<v1::Job> job_;
  uint64_t train_examples_ = 0;
  // The checkpoint from which the job began; 0: none. After a restart JobOptions::resume may name a later one of the
  // same job.
  uint64_t resumed_from_ = 0;
  std::optional<LeaseTable> leases_;
  bool model_declared_ = false;
  // Time since which a stream has had no new rows.
  absl::Time idle_since_ = absl::InfiniteFuture();
  ProgressTracker progress_;
  // Set for a job with Training.early_stopping.
  std::optional<EarlyStop> early_stop_;
};

}  // namespace ballast
