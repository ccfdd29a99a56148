// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/data/permutation.h"
#include "common/job/data_lease.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/row_indexer.h"

namespace ballast {

// A lease, and its examples if they are a data set of their own: position `begin` of the lease is example 0.
struct LeasedData {
  DataLease lease;
  // Null: the lease has positions in the job's training data.
  std::shared_ptr<const Dataset> rows = nullptr;
};

// Interface to the source of a worker's leases.
// Thread safety: one thread at a time calls Next; any thread may call Cancel.
class LeaseSource {
 public:
  virtual ~LeaseSource() = default;

  // Waits for the next lease, or for a lease without steps; nullopt once all epochs are done. The wait is bounded, and
  // its error names the members that it was waiting for. May be called before earlier leases are complete.
  virtual absl::StatusOr<std::optional<LeasedData>> Next() = 0;

  // Makes a waiting Next, and each later one, return CANCELLED immediately.
  virtual void Cancel() = 0;
};

// The examples from which a worker computes one gradient.
struct Batch {
  // Position in the stream, from 0.
  uint64_t sequence = 0;
  uint64_t lease_id = 0;
  uint32_t epoch = 0;
  bool last_of_lease = false;
  // Not a batch, but the mark of a lease without steps.
  bool marks_epoch = false;
  // 0 to the stream's batch size.
  uint32_t examples = 0;
  // Fraction of the job's examples that is done when the batch begins: PushHeader.schedule_position.
  double share = 0;
  // [examples, features], row-major.
  std::vector<float> features;
  std::vector<float> labels;
  // One for each of BatchStream::Options::tables.
  std::vector<BatchRows> tables;
};

// Turns leases into batches, and owns the threads that read them ahead. Each lease gives exactly `steps` batches: its
// positions from `begin` on, batch_size at a time, then batches of 0 examples. Batches come in the order of leases and
// positions for any number of threads. Does not report completed leases.
// Thread safety: one thread calls Next, AwaitLease and Recycle; any thread may call Cancel.
class BatchStream {
 public:
  struct Options {
    uint64_t seed = 0;
    // 1 to 1048576.
    uint32_t batch_size = 1;
    bool shuffle = true;
    // Most batches that are ready or being read, at least 1.
    uint32_t prefetch_batches = 4;
    // At least 1.
    uint32_t threads = 1;
    // Indices of the fields of ids that each table uses.
    std::vector<std::vector<size_t>> tables = {};
  };

  // Both must outlive the stream. Starts reading immediately. All examples have the fields of `dataset`, if they are
  // not from it.
  BatchStream(const Dataset* dataset, LeaseSource* leases, Options options);
  BatchStream(const BatchStream&) = delete;
  BatchStream& operator=(const BatchStream&) = delete;
  // Cancels, then waits for running reads.
  ~BatchStream();

  // Waits for the next batch, as long as the source or the data set takes; nullopt after the last batch of the last
  // lease. Returns their errors at the position of the batch that failed, and again on each later call. INTERNAL for an
  // invalid lease, CANCELLED after Cancel.
  absl::StatusOr<std::optional<Batch>> Next() ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the batch that Next will return, if it is ready and has examples. It stays there until Next.
  const Batch* Peek() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits up to `timeout` until Next can return. False if it cannot because the source has no lease for now; true also
  // while a batch is still being read.
  bool AwaitLease(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

  // Reuses the buffers of `batch` for a later batch.
  void Recycle(Batch batch) ABSL_LOCKS_EXCLUDED(mutex_);

  // Makes a waiting Next, and each later one, return CANCELLED immediately.
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A batch to be read, and its positions in the lease.
  struct Plan {
    uint64_t sequence = 0;
    uint64_t begin = 0;
    Permutation order;
    // LeasedData::rows. Shared with the other batches of the lease.
    std::shared_ptr<const Dataset> rows;
    Batch batch;
  };
  // The lease that is being split into plans.
  struct Current {
    // The remainder of the lease.
    DataLease lease;
    // Steps of the whole lease.
    uint32_t steps = 0;
    Permutation order;
    // LeasedData::rows, and the position of example 0.
    std::shared_ptr<const Dataset> rows;
    uint64_t first = 0;
  };
  // The result for one sequence number.
  struct Slot {
    bool ready = false;
    bool end = false;
    absl::Status status;
    Batch batch;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<Plan> WaitForPlan() ABSL_LOCKS_EXCLUDED(mutex_);
  void FetchLease() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckLease(const LeasedData& data) const;
  // Memory of a thread that reads, which it keeps from batch to batch.
  struct Scratch {
    std::vector<uint64_t> indices;
    IdBags ids;
    RowIndexer indexer;
  };
  absl::Status Fill(Plan& plan, Scratch& scratch) const;

  Plan TakePlanLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLocked(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayWorkLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayReturnLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Slot& SlotLocked(uint64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return slots_[sequence % slots_.size()]; }

  const Dataset* const dataset_;
  LeaseSource* const leases_;
  const Options options_;

  mutable absl::Mutex mutex_;
  // A ring buffer for the sequence numbers from returned_ on.
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  std::vector<Batch> spare_ ABSL_GUARDED_BY(mutex_);
  std::optional<Current> current_ ABSL_GUARDED_BY(mutex_);
  // Number of batches planned, and of those returned by Next.
  uint64_t planned_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t returned_ ABSL_GUARDED_BY(mutex_) = 0;
  // True once the ring is full, until it is half empty, so that a thread that reads is not woken for each batch.
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
  // True while a thread waits for the source.
  bool fetching_ ABSL_GUARDED_BY(mutex_) = false;
  // True once there are no more plans; the slot of the last sequence number holds the reason.
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace ballast
