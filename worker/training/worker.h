// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "ballast/v1/job.pb.h"
#include "client/client.h"
#include "client/coordinator_link.h"
#include "common/rpc/credentials.h"
#include "common/trace/timeline_recorder.h"
#include "worker/data/batch_stream.h"
#include "worker/data/datasets/dataset.h"
#include "worker/device/factory/worker_devices.h"
#include "worker/model/trainable_model.h"
#include "worker/training/coordinator_leases.h"
#include "worker/training/device_codec.h"
#include "worker/training/evaluator.h"
#include "worker/training/parameter_exchange.h"
#include "worker/training/run_recorder.h"

namespace ballast {

// One worker of a job, from its job file to its last word to the coordinator. Owns everything that training takes.
// Thread safety: Create and Run by one thread, Interrupt by any.
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
    // Over how many GPUs batches are split: "all", or a number; empty for 1.
    std::string gpus;
    // How GPUs compute.
    CudaOptions cuda;
    int threads = 1;
    // Where rank 0 writes; empty: runs/<job>-<time>.
    std::string run_dir;
    // With servers of this machine.
    bool shared_memory = true;
    // Where a timeline of these steps is left; empty: nowhere.
    std::string trace;
    StepRange trace_steps;
    // From its start until all servers and workers have joined; after that other bounds hold.
    absl::Duration gather_timeout = absl::Minutes(5);
  };

  // Opens device, data and model: all that can be wrong with the job itself. Reaches for nobody.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(Options options);
  ~Worker();
  Worker(const Worker&) = delete;

  // Joins, trains, leaves. CANCELLED when interrupted; rank 0 has then saved what there was. UNAVAILABLE where this
  // worker alone cannot go on, for its device is lost or it reaches no server: the others do. Any other failure is the
  // whole job's: the others hear of it. A worker that was given up, though it lives, joins again.
  absl::Status Run();

  // After Run: it ended before all had joined, because members were missing for longer than Options::gather_timeout or
  // the coordinator was lost. Started again it may find them.
  bool failed_to_gather() const { return failed_to_gather_; }

  // Ends Run after the step under way. False while it has not joined: there is nothing to save yet, nor anyone to tell.
  bool Interrupt();

 private:
  explicit Worker(Options options) : options_(std::move(options)) {}
  absl::Status Open();
  absl::Status OpenDevices();
  absl::StatusOr<std::unique_ptr<TrainableModel>> CreateModel() const;
  // With what encodes its gradients.
  absl::Status OpenModel();
  absl::Status RunJob();
  // From joining to leaving, once. Nothing where the coordinator gave this worker up meanwhile.
  std::optional<absl::Status> RunMembership();
  // Lets go of what belongs to one membership.
  void Disconnect();
  // For the job to gather; for a worker that returns, at least the time that a lost member has to do so.
  absl::Duration GatherTimeLeft() const;
  absl::Status FailToGather(const absl::Status& status, absl::string_view missing);
  absl::Status Join();
  absl::Status Connect();
  absl::Status Train();
  // However the run ended. Without it nothing that was learnt is lost, so a failure is but told.
  void WriteTimeline() const;
  absl::Status Finish(const v1::JobProgress& progress, bool interrupted);
  void OnJobChange(const JobCondition& condition);

  const Options options_;
  std::atomic<bool> interrupted_{false};
  // Null where there is to be none.
  std::unique_ptr<TimelineRecorder> timeline_;
  std::optional<WorkerDevices> devices_;
  std::unique_ptr<Dataset> train_;
  std::unique_ptr<Dataset> test_;
  std::unique_ptr<TrainableModel> model_;
  std::unique_ptr<DeviceCodec> codec_;
  // Examples that the model takes at once.
  int64_t max_batch_ = 0;
  absl::Time started_;
  bool failed_to_gather_ = false;
  // It takes part again, after it was given up.
  bool returns_ = false;
  v1::JoinResponse joined_;
  std::optional<RunRecorder> recorder_;
  // Ended by other threads when the job fails; hence the lock around the pointers, which are set once.
  absl::Mutex mutex_;
  std::unique_ptr<CoordinatorLink> link_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Client> client_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
