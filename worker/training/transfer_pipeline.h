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

// Owns two threads that wait for a device and for servers in place of the one that issues operations: one collects
// groups' gradients and pushes them, in the order in which it was asked; the other delivers the values that come in
// answer, of those that have come the first in forward's order first. A group is at rest, or on its way once: so no
// more is queued than there are groups. After an error nothing more is begun, and every wait ends. It knows no model
// and no server.
// Thread safety: one thread calls it; the errands run on its own.
class TransferPipeline {
 public:
  // A push under way; none where gradients were only kept.
  using Pushed = std::optional<Future<PushResult>>;
  using Collect = absl::AnyInvocable<absl::StatusOr<Pushed>()>;
  using Deliver = std::function<absl::Status(size_t group)>;

  // `deliver` runs on a thread of the pipeline's, while nobody else touches the group.
  TransferPipeline(size_t groups, Deliver deliver);
  // Waits for an errand that has begun; drops the others.
  ~TransferPipeline();
  TransferPipeline(const TransferPipeline&) = delete;
  TransferPipeline& operator=(const TransferPipeline&) = delete;

  // The group must be at rest. Answers the first error where there was one, and then does nothing.
  absl::Status Begin(size_t group, Collect collect) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for one that is pushed already.
  absl::Status Begin(size_t group, Future<PushResult> pushed) ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether the group is at rest, its values delivered, or an error has ended all; having waited at most so long.
  bool WaitFor(size_t group, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of a group for which WaitFor held: what its push gave, once; or the first error.
  absl::StatusOr<std::optional<PushResult>> Take(size_t group) ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives up all that is on its way, errors too, and brings every group to rest. Waits for errands that have begun;
  // DEADLINE_EXCEEDED where one lasts longer than that.
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
  // The first in forward's order whose push is answered.
  std::optional<size_t> AnsweredLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends an errand that was begun: what comes of it counts for nothing if all was given up meanwhile.
  void EndLocked(size_t group, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Deliver deliver_;
  absl::Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  // In the order in which they are collected, and in which they were pushed.
  std::deque<size_t> to_collect_ ABSL_GUARDED_BY(mutex_);
  std::deque<size_t> pushed_ ABSL_GUARDED_BY(mutex_);
  // The first error.
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  // Errands that run, and whether all is being given up.
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool abandoning_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread collector_;
  std::thread deliverer_;
};

}  // namespace ballast
