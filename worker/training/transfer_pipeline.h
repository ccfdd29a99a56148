// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
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

// Takes groups' gradients to the servers and delivers the values of the responses. Each group is either at rest or in
// transit once. It knows no model and no server. Thread safety: one thread calls it.
class TransferPipeline {
 public:
  // A push in flight; nullopt if the gradients were only accumulated.
  using Pushed = std::optional<Future<PushResult>>;
  using Collect = absl::AnyInvocable<absl::StatusOr<Pushed>()>;
  using Deliver = std::function<absl::Status(size_t group)>;

  // Returns a ThreadedPipeline or an InlinePipeline. `deliver` has exclusive access to the group.
  static std::unique_ptr<TransferPipeline> Create(bool threaded, size_t groups, Deliver deliver);
  virtual ~TransferPipeline() = default;

  // Collects and pushes the group's gradients; the group must be at rest. May return an error, also of another group,
  // without beginning anything.
  virtual absl::Status Begin(size_t group, Collect collect) = 0;
  // Same, for a group that is already pushed.
  virtual absl::Status Begin(size_t group, Future<PushResult> pushed) = 0;

  // Waits until Take need not wait for the group's push. False on timeout.
  virtual bool WaitFor(size_t group, absl::Duration timeout) = 0;
  // Returns the result of the group's push, once, with its values delivered, or an error. WaitFor must have returned
  // true.
  virtual absl::StatusOr<std::optional<PushResult>> Take(size_t group) = 0;

  // Drops all transfers and any error, and brings every group to rest. Waits for callbacks that are running;
  // DEADLINE_EXCEEDED if one runs longer than `timeout`.
  virtual absl::Status Abandon(absl::Duration timeout) = 0;
};

// Runs the callbacks in the calling thread: `collect` during Begin and `deliver` during Take, without a thread or a
// lock. For gradients that the host can read without waiting.
class InlinePipeline : public TransferPipeline {
 public:
  InlinePipeline(size_t groups, Deliver deliver) : deliver_(std::move(deliver)), pushed_(groups) {}

  absl::Status Begin(size_t group, Collect collect) override;
  absl::Status Begin(size_t group, Future<PushResult> pushed) override;
  bool WaitFor(size_t group, absl::Duration timeout) override;
  absl::StatusOr<std::optional<PushResult>> Take(size_t group) override;
  absl::Status Abandon(absl::Duration timeout) override;

 private:
  const Deliver deliver_;
  std::vector<Pushed> pushed_;
};

// Owns two threads that wait for a device and for servers, so that the thread that issues operations need not: the
// collector fetches groups' gradients and pushes them in the order of Begin; the deliverer delivers the values of the
// responses, in forward order among those that have arrived. The queues hold at most one entry per group. After an
// error no task begins, every wait ends, and every call returns that error. Thread safety: one thread calls it; the
// callbacks run on its own threads.
class ThreadedPipeline : public TransferPipeline {
 public:
  ThreadedPipeline(size_t groups, Deliver deliver);
  // Waits for callbacks that are running; drops the others.
  ~ThreadedPipeline() override;

  absl::Status Begin(size_t group, Collect collect) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Begin(size_t group, Future<PushResult> pushed) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool WaitFor(size_t group, absl::Duration timeout) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::optional<PushResult>> Take(size_t group) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Abandon(absl::Duration timeout) override ABSL_LOCKS_EXCLUDED(mutex_);

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
