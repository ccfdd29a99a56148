// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/future.h"

namespace ballast {

// Owns two threads that wait for a device and for servers, so that the thread that issues operations need not: the
// collector fetches groups' gradients and pushes them in the order of Begin; the deliverer delivers the values of the
// responses, in forward order among those that have arrived. Each group is either at rest or in transit once, so the
// queues hold at most one entry per group. After an error no task begins, and every wait ends. It knows no model and no
// server. Thread safety: one thread calls it; the callbacks run on its own threads.
class TransferPipeline {
 public:
  // A push in flight; nullopt if the gradients were only accumulated.
  using Pushed = std::optional<Future<PushResult>>;
  using Collect = absl::AnyInvocable<absl::StatusOr<Pushed>()>;
  using Deliver = std::function<absl::Status(size_t group)>;

  // `deliver` runs on a thread of the pipeline, with exclusive access to the group.
  TransferPipeline(size_t groups, Deliver deliver);
  // Waits for callbacks that are running; drops the others.
  ~TransferPipeline();
  TransferPipeline(const TransferPipeline&) = delete;
  TransferPipeline& operator=(const TransferPipeline&) = delete;

  // The group must be at rest. Returns the first error, if any, without beginning anything.
  absl::Status Begin(size_t group, Collect collect) ABSL_LOCKS_EXCLUDED(mutex_);
  // Same, for a group that is already pushed.
  absl::Status Begin(size_t group, Future<PushResult> pushed) ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until the group is at rest, with its values delivered, or an error has ended all work. False on timeout.
  bool WaitFor(size_t group, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the result of the group's push, once, or the first error. WaitFor must have returned true.
  absl::StatusOr<std::optional<PushResult>> Take(size_t group) ABSL_LOCKS_EXCLUDED(mutex_);

  // Drops all transfers and any error, and brings every group to rest. Waits for callbacks that are running;
  // DEADLINE_EXCEEDED if one runs longer than `timeout`.
  absl::Status Abandon(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class State { kAtRest, kToCollect, kCollecting, kPushed, kDelivering };

  struct Entry {
    State state = State::kAtRest;
    Collect collect;
    Pushed pushed;
    std::optional<PushResult> result;
  };

  void CollectAll() ABSL_LOCKS_EXCLUDED(mutex_);
  void DeliverAll() ABSL_LOCKS_EXCLUDED(mutex_);
  // The first group in forward order whose push has a response.
  std::optional<size_t> AnsweredLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends a task that has begun. Ignores `status` during Abandon.
  void EndLocked(size_t group, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Deliver deliver_;
  absl::Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  // Groups in the order of their collection, and in the order of their pushes.
  std::deque<size_t> to_collect_ ABSL_GUARDED_BY(mutex_);
  std::deque<size_t> pushed_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  // Number of running callbacks.
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool abandoning_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread collector_;
  std::thread deliverer_;
};

}  // namespace ballast
