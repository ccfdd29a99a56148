// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"
#include "common/clock.h"
#include "common/histogram.h"
#include "server/push_window.h"
#include "server/slice.h"
#include "server/wait_room.h"

namespace ballast {

// Names a slice of a shard.
struct SliceKey {
  uint32_t tensor_id = 0;
  uint32_t slice_index = 0;

  friend bool operator==(const SliceKey&, const SliceKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const SliceKey& key) {
    return H::combine(std::move(h), key.tensor_id, key.slice_index);
  }
};

// A gradient as it came, over the caller's memory.
struct GradientView {
  SliceKey key;
  uint64_t version = 0;
  v1::Encoding encoding = v1::ENCODING_FP32;
  absl::Span<const absl::string_view> payload;
};

// Who pushes, and when: ballast.v1.PushHeader.
struct PushTicket {
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  uint64_t sequence = 0;
  uint64_t step = 0;
  uint32_t examples = 0;
};

// What the job is, as the first declaration says.
struct JobTerms {
  std::string name;
  v1::ConsistencyPolicy policy;
  uint32_t workers = 0;
};

// A tensor and the part of it that this shard owns.
struct OwnedTensor {
  v1::TensorSpec spec;
  std::vector<v1::SliceRange> slices;
};

struct ShardStatus {
  JobTerms job;
  uint64_t tensors = 0, slices = 0, state_bytes = 0;
  uint64_t pushes = 0, pulls = 0, updates = 0, duplicates = 0, dropped = 0, waiting = 0, max_staleness = 0;
  double uptime_seconds = 0;
  bool draining = false;
  // Of applied slice gradients; of pulls, 0 for those that did not wait.
  v1::Histogram staleness, wait_microseconds;
};

// One shard: the slices of one job that live in this process, and the push windows of its workers.
// Invariant: a push is applied once, and as a whole or not at all. Deliberately knows neither the wire nor the other
// shards. Thread safety: all methods may be called from any thread.
class ParameterShard {
 public:
  struct Options {
    uint32_t rank = 0;
    // Weights and slots; FAILED_PRECONDITION beyond it, for no retry helps.
    uint64_t max_state_bytes = uint64_t{1} << 34;
  };

  ParameterShard(Options options, const Clock* clock);

  // Creates tensors; answers with the slices owned. The same again is OK, anything different FAILED_PRECONDITION, and
  // nothing is created then. A tensor without slices is owned whole.
  absl::StatusOr<std::vector<OwnedTensor>> Declare(const JobTerms& job, std::vector<OwnedTensor> tensors);

  // FAILED_PRECONDITION where this is not the job that the shard holds.
  absl::Status CheckJob(absl::string_view job) const;

  // Empty until one is declared.
  std::string job_name() const;

  // Hands in gradients. INVALID_ARGUMENT, NOT_FOUND and FAILED_PRECONDITION change nothing. A retry is safe.
  absl::StatusOr<PushOutcome> Push(absl::string_view job, const PushTicket& push,
                                   absl::Span<const GradientView> gradients);

  // Nobody waits for the worker until its next push. FAILED_PRECONDITION for an old incarnation. A retry is safe.
  absl::Status Pause(absl::string_view job, uint32_t worker, uint64_t incarnation);

  // Calls `done` once when all slices may be pulled, or with DEADLINE_EXCEEDED naming the workers waited for,
  // or UNAVAILABLE when the shard drains. May call it before returning. Answers what CancelPull takes.
  WaitRoom::Ticket AwaitPull(absl::string_view job, const PullTerms& pull, std::vector<SliceKey> keys,
                             absl::Duration wait, WaitRoom::Done done);

  // Ends the wait with CANCELLED, unless it has ended.
  void CancelPull(WaitRoom::Ticket ticket) { waits_.End(ticket, absl::CancelledError("the caller has gone")); }

  // One slice's values as they are now, for `worker` if it is one that asks.
  absl::StatusOr<Slice::Snapshot> Pull(SliceKey key, std::optional<uint32_t> worker);

  // Ends all waits and refuses new pushes and waits with `reason` (UNAVAILABLE, ABORTED …) from now on. Pulls at step
  // 0, which never wait, go on: what was learnt can still be saved.
  void Close(absl::Status reason);

  ShardStatus status() const;

 private:
  // A gradient that was found good, and where it goes.
  struct CheckedGradient {
    Slice* slice = nullptr;
    uint64_t version = 0;
    Gradient gradient;
  };
  struct Tensor {
    v1::TensorSpec spec;
    std::unique_ptr<Optimizer> optimizer;
    std::vector<v1::SliceRange> slices;
  };
  // What a declaration adds.
  struct Addition {
    std::vector<std::pair<uint32_t, std::unique_ptr<Tensor>>> tensors;
    uint64_t bytes = 0;
  };

  absl::Status closed() const;
  absl::Status CheckJobLocked(absl::string_view job) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckTermsLocked(const JobTerms& job) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CutWhole(std::vector<OwnedTensor>& tensors) const;
  static absl::Status CheckSlices(OwnedTensor& tensor);
  absl::StatusOr<Addition> PlanLocked(std::vector<OwnedTensor>& tensors) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Slice*> FindLocked(SliceKey key) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::vector<Slice*>> FindAll(absl::string_view job, absl::Span<const SliceKey> keys) const;
  absl::StatusOr<std::vector<CheckedGradient>> CheckPush(absl::string_view job, const PushTicket& push,
                                                         absl::Span<const GradientView> gradients) const;
  absl::StatusOr<Gradient> CheckGradient(const PushTicket& push, const GradientView& view, const Slice& slice) const;
  PushOutcome Apply(const PushTicket& push, absl::Span<const CheckedGradient> gradients);
  absl::StatusOr<PushWindow*> WindowOf(uint32_t worker) const;
  std::string ExplainWait(const PullTerms& pull, absl::Span<Slice* const> slices) const;

  const Options options_;
  const Clock* const clock_;
  const absl::Time started_;
  mutable absl::Mutex mutex_;
  JobTerms job_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  uint64_t state_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Nothing is ever removed, so pointers to tensors, slices and windows stay good.
  absl::flat_hash_map<uint32_t, std::unique_ptr<Tensor>> tensors_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<SliceKey, std::unique_ptr<Slice>> slices_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<PushWindow>> windows_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> pushes_{0}, pulls_{0}, updates_{0}, duplicates_{0}, dropped_{0}, max_staleness_{0};
  Histogram staleness_, wait_microseconds_;
  // Last: its destruction ends the waits, whose callbacks use the rest.
  WaitRoom waits_;
};

}  // namespace ballast
