// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/storage.pb.h"
#include "server/shard/push.h"
#include "server/shard/push_window.h"
#include "server/shard/shard_state.h"
#include "server/tensors/slice.h"
#include "server/tensors/tensor_catalog.h"

namespace ballast {

// The slices of a push and its validated gradients, in the push's order.
struct CheckedPush {
  std::vector<SliceKey> keys;
  std::vector<Slice*> slices;
  std::vector<Gradient> gradients;
};

// Validated and decoded values of a slice.
struct CheckedValues {
  Slice* slice = nullptr;
  ValueBuffer values;
  uint64_t checksum = 0;
};

// Owns what a shard's job has declared (its configuration and tensors), the push windows of its workers and the reason
// for which it was closed, and checks requests against them. Invariant: a job, a slice or a window is never replaced
// or removed, so pointers to them stay valid. Deliberately knows neither the journal nor the waits: a check changes
// nothing. Thread safety: all methods may be called from any thread; payloads are checked outside the lock.
class DeclaredJob {
 public:
  // `shard` is used in messages. `max_bytes`: see TensorCatalog.
  DeclaredJob(uint32_t shard, uint64_t max_bytes) : shard_(shard), catalog_(shard, max_bytes) {}

  // Refuses later declarations, pushes and values with `reason`. False, without effect, if it is closed already.
  bool Close(absl::Status reason);
  absl::Status closed() const;

  // Returns the tensors that are new, after cutting tensors without slices. The reason of a closed job;
  // INVALID_ARGUMENT for an invalid declaration; FAILED_PRECONDITION for one that differs from an earlier one or does
  // not fit.
  absl::StatusOr<TensorCatalog::Addition> CheckDeclaration(const JobConfig& job,
                                                           std::vector<OwnedTensor>& tensors) const;
  // FAILED_PRECONDITION if the shard lacks the storage that the job's durability needs.
  absl::Status CheckDurability(const JobConfig& job, bool keeps_checkpoints, bool keeps_journal) const;
  // Creates the added slices, from saved state if there is any, unless the job is closed meanwhile.
  absl::Status MakeSlices(const JobConfig& job, std::vector<ShardState::SliceEntry> saved,
                          TensorCatalog::Addition& addition) const;
  // Adds what was checked and made. `windows`: saved windows by rank; a worker that has pushed keeps its own.
  void Add(const JobConfig& job, TensorCatalog::Addition addition, absl::Span<const internal::v1::WindowState> windows);
  using Windows = std::vector<std::unique_ptr<PushWindow>>;
  // Takes time proportional to the workers.
  static Windows MakeWindows(uint32_t workers, absl::Span<const internal::v1::WindowState> saved);
  // Takes over a complete job. FAILED_PRECONDITION if there is one.
  absl::Status Adopt(JobConfig job, TensorCatalog catalog, Windows windows);

  // FAILED_PRECONDITION if no job, or a different one, is declared.
  absl::Status CheckName(absl::string_view job) const;
  // CheckName's errors; INVALID_ARGUMENT for a rank that the job does not have.
  absl::StatusOr<ChangeSource> FindSource(absl::string_view job, uint32_t worker, uint64_t incarnation) const;
  // CheckName's errors, and TensorCatalog::Find's.
  absl::StatusOr<std::vector<Slice*>> Find(absl::string_view job, absl::Span<const SliceKey> keys) const;
  absl::StatusOr<Slice*> Find(SliceKey key) const;

  // Checks all of a push but what it carries. True if the job accepts numbers that are not finite. CheckName's errors,
  // INVALID_ARGUMENT, or the reason of a closed job.
  absl::StatusOr<bool> CheckTicket(absl::string_view job, const PushTicket& push) const;

  // INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION, or the reason of a closed job.
  absl::StatusOr<CheckedPush> CheckPush(absl::string_view job, const PushTicket& push,
                                        absl::Span<const GradientView> gradients) const;
  absl::StatusOr<std::vector<CheckedValues>> CheckValues(absl::string_view job,
                                                         absl::Span<const ValueView> values) const;
  // Find's errors; INVALID_ARGUMENT if a slice is requested twice, or if the slices exceed the element limit of one
  // message.
  absl::StatusOr<std::vector<Slice*>> CheckPull(absl::string_view job, absl::Span<const SliceKey> keys) const;
  absl::Status CheckPull(absl::Span<const SliceKey> keys) const;
  // Checks the slices' clocks. Returns the slices that must catch up with the push first, because their shard lost
  // updates; an error if it cannot have lost any, or so many.
  absl::StatusOr<std::vector<SeenSlice>> CheckSteps(const PushTicket& push, const CheckedPush& checked,
                                                    bool may_have_lost) const;

  // Empty until a job is declared.
  std::string name() const;
  JobConfig config() const;
  struct Summary {
    JobConfig job;
    uint64_t tensors = 0, slices = 0, state_bytes = 0;
    TensorCatalog::Memory memory = {};
    // By rank: accepted pushes and the worker's newest sequence number.
    std::vector<PushWindow::Count> workers_pushes;
    bool draining = false;
  };
  Summary summary() const;
  // Everything except the slices.
  ShardState Outline() const;
  // Sorted by key.
  std::vector<std::pair<SliceKey, Slice*>> Slices() const;

 private:
  // The slices that a request changes.
  struct Targets {
    std::vector<Slice*> slices;
    bool accept_non_finite = false;
  };

  absl::Status CheckConfigLocked(const JobConfig& job) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckNameLocked(absl::string_view job) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::vector<Slice*>> FindLocked(absl::string_view job, absl::Span<const SliceKey> keys) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Like Find, unless the job is closed.
  absl::StatusOr<Targets> FindTargets(absl::string_view job, absl::Span<const SliceKey> keys) const;
  absl::StatusOr<Gradient> CheckGradient(const PushTicket& push, const GradientView& view, const Slice& slice) const;
  std::string TooManyElements(absl::string_view verb) const;

  const uint32_t shard_;
  mutable absl::Mutex mutex_;
  JobConfig config_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  TensorCatalog catalog_ ABSL_GUARDED_BY(mutex_);
  Windows windows_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
