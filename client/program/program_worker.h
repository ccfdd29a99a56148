// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/job.pb.h"
#include "client/client.h"
#include "client/coordinator_link.h"
#include "common/flight/flight_dump.h"
#include "common/rpc/credentials.h"
#include "common/trace/call_timeline.h"
#include "common/trace/trace_context.h"

namespace ballast {

// Owns the membership of a program in a job, as a worker that brings its own model, and its data if it likes: the
// connections to coordinator and shards, and the leases of the job's examples. Does not know the numbers, which
// `client` exchanges, nor the examples: a lease is a range of positions. If the job fails or this worker is declared
// lost, all its calls end, and Explain says why. The destructor ends all calls without leaving: the coordinator then
// declares the worker lost. Thread safety: any thread may call any method, but one at a time calls NextLease, Pause,
// CatchUp and Leave.
class ProgramWorker {
 public:
  struct Options {
    std::string coordinator;
    Credentials credentials;
    // Equal for all workers. Needs only a name, and `training` with epochs and batch size if there are examples; the
    // default policy is sync. Its model and data are not used, and early_stopping is refused.
    v1::Job job;
    std::optional<uint32_t> rank;
    // Number of examples that the job's workers lease, equal for all; 0: none, NextLease fails with NO_DATA.
    uint64_t examples = 0;
    // Limit on the time until all servers and workers have joined.
    absl::Duration gather_timeout = absl::Minutes(5);
    // Directory in which worker 0 writes the job, as job.textproto; empty: none.
    std::string run_dir;
    // Directory for a dump of the flight recorder after a call that failed; empty: none.
    std::string flight_dir;
    // The larger trace that this program is part of; servers see it with each message.
    std::optional<TraceContext> trace;
    // Exchange messages with servers on this machine through shared memory.
    bool shared_memory = true;
    // Exchange messages with other servers on data streams.
    bool data_streams = true;
  };

  // A lease of the job's examples.
  struct Lease {
    v1::Lease range;
    // No worker waited for this one meanwhile, so it is behind: it calls CatchUp before it computes gradients.
    bool behind = false;
  };

  // Joins the job; blocks until all its members have joined. INVALID_ARGUMENT for options out of range;
  // FAILED_PRECONDITION (JOB_DIFFERS) if another worker has joined with another job; DEADLINE_EXCEEDED names the
  // members that are missing.
  static absl::StatusOr<std::unique_ptr<ProgramWorker>> Join(Options options);
  ~ProgramWorker();

  // Declares tensors, and tables; returns their ids, in order. A name that the job has keeps its id; others get the
  // next ids, so all workers declare in the same order. Ids in the specs are ignored. Errors are those of Client.
  absl::StatusOr<std::vector<uint32_t>> Declare(std::vector<v1::TensorSpec> specs);
  absl::StatusOr<std::vector<uint32_t>> DeclareTables(std::vector<v1::TableSpec> specs);

  // Blocks for up to `timeout` until there is a lease; nullopt once all epochs are done. No call may be in flight,
  // since this worker pauses at the shards while it waits. DEADLINE_EXCEEDED names the members that it waited for.
  absl::StatusOr<std::optional<Lease>> NextLease(absl::Duration timeout);
  // Reports a lease as done, once all pushes of its gradients are acknowledged: the worker's total steps and batches.
  absl::Status CompleteLease(uint64_t lease_id, uint64_t steps, uint64_t batches);

  // Tells the shards that no step waits for this worker until its next push. No call may be in flight.
  absl::Status Pause();
  // Pulls the newest values of all the job's tensors, and reaches the step of the other workers; returns the next step.
  // Call it first if `returns`, and after a lease that is behind. No call may be in flight.
  absl::StatusOr<uint64_t> CatchUp(absl::Span<const TensorValues> tensors);

  // Adds this worker's work since its last report to the job's metrics; returns the job's progress.
  absl::StatusOr<v1::JobProgress> Report(v1::WorkerProgress progress, std::optional<v1::Evaluation> evaluation);

  // Leaves the job, whose other workers go on. With a failure, the job fails for that reason.
  absl::Status Leave(const std::string& failure);

  Client& client() const ABSL_LOCKS_EXCLUDED(mutex_);
  JobCondition condition() const { return link_->condition(); }
  uint32_t rank() const { return joined_.member().rank(); }
  uint32_t workers() const { return joined_.workers(); }
  uint32_t servers() const { return joined_.servers(); }
  // True if an earlier process of this rank has trained; it had made `first_step` steps.
  bool returns() const { return joined_.member().incarnation() > 1 && !joined_.has_resumed_batches(); }
  uint64_t first_step() const { return joined_.steps(); }

  // Returns the error with which a call failed because the job has failed or this worker was declared lost, and any
  // other status as it is. If the job or a wait failed, requests a flight dump.
  absl::Status Explain(const absl::Status& status) const;

 private:
  explicit ProgramWorker(Options options) : options_(std::move(options)) {}
  absl::Status Connect(absl::Time deadline);
  absl::Status AwaitMembers(absl::Time deadline);
  void OnJobChange(const JobCondition& condition) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sets the ids of specs.
  template <typename Spec>
  absl::StatusOr<std::vector<uint32_t>> AssignIds(std::vector<Spec>& specs);
  // Pushes nothing to all tensors and tables at this step, and pulls.
  absl::Status PassStep(uint64_t step, absl::Span<const TensorValues> tensors);

  const Options options_;
  // Set by Join, then constant.
  v1::JoinResponse joined_;
  std::optional<FlightDumper> flight_;
  // Null without a trace. Outlives the client.
  std::unique_ptr<CallTracer> tracer_;
  // True if this worker has paused. For the thread that takes leases.
  bool away_ = false;

  mutable absl::Mutex mutex_;
  v1::JobState state_ ABSL_GUARDED_BY(mutex_) = v1::JOB_STATE_GATHERING;
  // Set by Join, then constant; heartbeats shut it down if the job fails.
  std::unique_ptr<Client> client_ ABSL_GUARDED_BY(mutex_);

  // Set by Join, then constant. Declared last, because its heartbeats use the other fields.
  std::unique_ptr<CoordinatorLink> link_;
};

}  // namespace ballast
