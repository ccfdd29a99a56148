// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "ballast/v1/job.pb.h"
#include "client/client.h"
#include "client/coordinator_link.h"
#include "common/rpc/credentials.h"
#include "common/trace/call_timeline.h"
#include "common/trace/timeline_recorder.h"
#include "common/trace/trace_context.h"
#include "worker/data/batch_stream.h"
#include "worker/device/cuda_options.h"
#include "worker/training/run_recorder.h"
#include "worker/training/worker_metrics.h"
#include "worker/training/worker_resources.h"

namespace ballast {

// Owns one worker of a job, from opening the job's data and model to leaving the job: its resources, connections and
// run directory. Thread safety: one thread calls Create and Run; any thread may call Interrupt.
class Worker {
 public:
  struct Options {
    // Validated. Relative paths in it are relative to `job_folder`.
    v1::Job job;
    std::string job_folder;
    std::string coordinator;
    Credentials credentials;
    std::optional<uint32_t> rank;
    // "auto", "cpu" or "cuda".
    std::string device = "auto";
    // Number of GPUs that share each batch, or "all"; empty: 1.
    std::string gpus;
    CudaOptions cuda;
    int threads = 1;
    // Directory to which rank 0 writes; empty: runs/<job>-<time>.
    std::string run_dir;
    // Rank 0 continues in a run_dir that holds a run, even if the job begins.
    bool continues_run = false;
    // Exchange messages with servers on this machine through shared memory.
    bool shared_memory = true;
    // Exchange messages with other servers on data streams.
    bool data_streams = true;
    // Output file for a timeline of `trace_steps`; empty: none.
    std::string trace;
    StepRange trace_steps;
    // The trace of the timeline's calls, and the span that caused them, if any.
    TraceContext trace_context = NewTrace();
    // Gets the worker's figures; may be null, and outlives the worker.
    WorkerMetrics* metrics = nullptr;
    // Limit on the time from the start of Run until all servers and workers have joined.
    absl::Duration gather_timeout = absl::Minutes(5);
  };

  // Opens devices, data and model, so that errors in the job surface before any network call.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(Options options);
  ~Worker();
  Worker(const Worker&) = delete;

  // Joins, trains and leaves. CANCELLED if interrupted, after rank 0 has saved its results. UNAVAILABLE if only this
  // worker failed, because it lost its device or all connections to servers; the other workers continue. Any other
  // error fails the whole job and is reported to it. Joins again if the coordinator declared this live worker lost.
  absl::Status Run();

  // Valid after Run. True if Run ended before all had joined, because members were missing for longer than
  // Options::gather_timeout or the coordinator was lost; a restart may succeed.
  bool failed_to_gather() const { return failed_to_gather_; }

  // Valid after Run. True if a server was lost, and its shard with it: the job can only begin again, from a checkpoint.
  bool lost_shard() const { return lost_shard_; }

  // Ends Run after the current step. Returns false before the worker has joined, when there is nothing to save.
  bool Interrupt();

 private:
  explicit Worker(Options options) : options_(std::move(options)) {}
  absl::Status Open();
  absl::Status RunJob();
  // Joins, trains and leaves until the job has ended for this worker.
  absl::Status RunMemberships();
  // Joins, trains and leaves once. nullopt if the coordinator declared this worker lost, which may then join again.
  std::optional<absl::Status> RunMembership();
  void Disconnect();
  // The time left for the job to gather; for a worker that rejoins, at least the time that a lost member has to return.
  absl::Duration GatherTimeLeft() const;
  absl::Status FailToGather(const absl::Status& status, absl::string_view missing);
  absl::Status Join();
  absl::Status Connect();
  // Id of the first table; the ids before it are the tensors'.
  uint32_t FirstTableId() const { return resources_->model->parameters().size(); }
  // Sets the values of init_from at the servers, unless an earlier process of this rank has.
  absl::Status SetInitialValues(Client& client);
  std::unique_ptr<LeaseSource> OpenLeases(CoordinatorLink* link);
  absl::Status Train();
  // A failure is only logged, because the timeline is not part of the training result.
  void WriteTimeline() const;
  absl::Status Finish(const v1::JobProgress& progress, bool interrupted);
  void OnJobChange(const JobCondition& condition);
  // Both stay valid until the next Disconnect, on the thread that calls it.
  std::pair<Client*, CoordinatorLink*> Connections() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  std::atomic<bool> interrupted_{false};
  // Null without Options::trace.
  std::unique_ptr<TimelineRecorder> timeline_;
  std::unique_ptr<CallTracer> tracer_;
  // Set by Create.
  std::optional<WorkerResources> resources_;
  absl::Time started_;
  bool failed_to_gather_ = false;
  bool lost_shard_ = false;
  // True if this process has joined before and lost that membership.
  bool returns_ = false;
  v1::JoinResponse joined_;
  // Set by Connect.
  std::vector<v1::TableSpec> tables_;
  std::optional<RunRecorder> recorder_;
  // Guards the pointers, because other threads shut both objects down when the job fails or is interrupted.
  absl::Mutex mutex_;
  std::unique_ptr<CoordinatorLink> link_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Client> client_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
