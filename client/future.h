// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ballast {

template <typename T>
class Promise;

// The result of something under way: a T or the status of its failure. Copies look at the same result.
// Whoever gives one out bounds how long it takes; a future knows no deadline of its own.
// Thread safety: all methods may be called from any thread.
template <typename T>
class Future {
 public:
  bool Ready() const {
    absl::MutexLock lock(&state_->mutex);
    return state_->result.has_value();
  }

  // Whether it is ready, having waited at most so long.
  bool WaitFor(absl::Duration timeout) const {
    absl::MutexLock lock(&state_->mutex);
    return state_->mutex.AwaitWithTimeout(absl::Condition(state_.get(), &State::HasResultLocked), timeout);
  }

  // Blocks until ready.
  absl::StatusOr<T> Get() const {
    absl::MutexLock lock(&state_->mutex, absl::Condition(state_.get(), &State::HasResultLocked));
    return *state_->result;
  }

 private:
  friend class Promise<T>;

  struct State {
    absl::Mutex mutex;
    std::optional<absl::StatusOr<T>> result ABSL_GUARDED_BY(mutex);
    bool HasResultLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return result.has_value(); }
  };

  explicit Future(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Shared with the promise and with copies: whichever lives longest keeps it.
  std::shared_ptr<State> state_;
};

// The writing end of a Future. Dropped without a result, it makes the future CANCELLED, so that no one waits for ever.
// Thread safety: one thread at a time.
template <typename T>
class Promise {
 public:
  Promise() : state_(std::make_shared<typename Future<T>::State>()) {}
  Promise(Promise&&) = default;
  Promise& operator=(Promise&&) = delete;
  ~Promise() {
    if (state_ != nullptr) Set(absl::CancelledError("given up without a result"));
  }

  Future<T> GetFuture() const { return Future<T>(state_); }

  // Only the first result counts.
  void Set(absl::StatusOr<T> result) {
    absl::MutexLock lock(&state_->mutex);
    if (!state_->result.has_value()) state_->result.emplace(std::move(result));
  }

 private:
  std::shared_ptr<typename Future<T>::State> state_;
};

// A future that is ready at once.
template <typename T>
Future<T> MakeReadyFuture(absl::StatusOr<T> result) {
  Promise<T> promise;
  promise.Set(std::move(result));
  return promise.GetFuture();
}

}  // namespace ballast
