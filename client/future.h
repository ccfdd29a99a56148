// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <future>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ballast {

// The future result of an operation: a T or the status of its failure. Copies share the result. A future has no
// deadline of its own; the operation must have one. Thread safety: all methods may be called from any thread.
template <typename T>
class Future {
 public:
  bool Ready() const { return WaitFor(absl::ZeroDuration()); }

  // Blocks for at most `timeout`; returns whether the result is ready.
  bool WaitFor(absl::Duration timeout) const {
    // The standard library overflows on infinite times.
    const absl::Duration bounded = std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24 * 365));
    return result_.wait_for(absl::ToChronoNanoseconds(bounded)) == std::future_status::ready;
  }

  // Blocks until the result is ready.
  absl::StatusOr<T> Get() const { return result_.get(); }

 private:
  template <typename U>
  friend class Promise;

  explicit Future(std::shared_future<absl::StatusOr<T>> result) : result_(std::move(result)) {}

  std::shared_future<absl::StatusOr<T>> result_;
};

// The writing end of a Future. Destroying it without a result makes the future CANCELLED, so that no one waits forever.
// Thread safety: one thread at a time.
template <typename T>
class Promise {
 public:
  Promise() : result_(promise_.get_future()) {}
  Promise(Promise&& other)
      : promise_(std::move(other.promise_)), result_(other.result_), kept_(std::exchange(other.kept_, true)) {}
  Promise& operator=(Promise&&) = delete;
  ~Promise() { Set(absl::CancelledError("promise destroyed without a result")); }

  Future<T> GetFuture() const { return Future<T>(result_); }

  // Ignored after the first result.
  void Set(absl::StatusOr<T> result) {
    if (!std::exchange(kept_, true)) promise_.set_value(std::move(result));
  }

 private:
  std::promise<absl::StatusOr<T>> promise_;
  std::shared_future<absl::StatusOr<T>> result_;
  bool kept_ = false;
};

template <typename T>
Future<T> MakeReadyFuture(absl::StatusOr<T> result) {
  Promise<T> promise;
  promise.Set(std::move(result));
  return promise.GetFuture();
}

}  // namespace ballast
