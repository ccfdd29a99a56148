// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/concurrency/await_within.h"

namespace ballast {

template <typename T>
class Promise;

// The future result of an operation: a T or the status of its failure. Copies share the result. A future has no
// deadline of its own; the operation must have one. Thread safety: all methods may be called from any thread.
template <typename T>
class Future {
 public:
  using Callback = absl::AnyInvocable<void(const absl::StatusOr<T>&)>;

  bool Ready() const { return WaitFor(absl::ZeroDuration()); }

  // Blocks for at most `timeout`; returns whether the result is ready.
  bool WaitFor(absl::Duration timeout) const {
    absl::MutexLock lock(&state_->mutex);
    return AwaitWithin(state_->mutex, absl::Condition(state_.get(), &State::ReadyLocked), timeout);
  }

  // Blocks until the result is ready.
  absl::StatusOr<T> Get() const {
    absl::MutexLock lock(&state_->mutex);
    state_->mutex.Await(absl::Condition(state_.get(), &State::ReadyLocked));
    return *state_->result;
  }

  // Calls `callback` once with the result: now if it is ready, otherwise from the thread that sets it, which must not
  // be held up.
  void OnReady(Callback callback) const {
    {
      absl::MutexLock lock(&state_->mutex);
      if (!state_->result.has_value()) {
        state_->callbacks.push_back(std::move(callback));
        return;
      }
    }
    callback(state_->ConstantResult());
  }

 private:
  friend class Promise<T>;

  // Shared by a promise and its futures, whichever is destroyed last.
  struct State {
    bool ReadyLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return result.has_value(); }
    // The result never changes once it is set.
    const absl::StatusOr<T>& ConstantResult() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return *result; }

    absl::Mutex mutex;
    std::optional<absl::StatusOr<T>> result ABSL_GUARDED_BY(mutex);
    std::vector<Callback> callbacks ABSL_GUARDED_BY(mutex);
  };

  explicit Future(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

// The writing end of a Future. Destroying it without a result makes the future CANCELLED, so that no one waits forever.
// Thread safety: one thread at a time.
template <typename T>
class Promise {
 public:
  Promise() : state_(std::make_shared<typename Future<T>::State>()) {}
  // Only GetFuture may be called on the promise that was moved from.
  Promise(Promise&& other) : state_(other.state_), kept_(std::exchange(other.kept_, true)) {}
  Promise& operator=(Promise&&) = delete;
  ~Promise() { Set(absl::CancelledError("promise destroyed without a result")); }

  Future<T> GetFuture() const { return Future<T>(state_); }

  // Ignored after the first result.
  void Set(absl::StatusOr<T> result) {
    if (std::exchange(kept_, true)) return;
    std::vector<typename Future<T>::Callback> callbacks;
    {
      absl::MutexLock lock(&state_->mutex);
      state_->result.emplace(std::move(result));
      callbacks.swap(state_->callbacks);
    }
    for (auto& callback : callbacks) callback(state_->ConstantResult());
  }

 private:
  std::shared_ptr<typename Future<T>::State> state_;
  bool kept_ = false;
};

template <typename T>
Future<T> MakeReadyFuture(absl::StatusOr<T> result) {
  Promise<T> promise;
  promise.Set(std::move(result));
  return promise.GetFuture();
}

}  // namespace ballast
