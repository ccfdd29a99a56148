// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/concurrency/await_within.h"
#include "common/status/error_reason.h"

namespace ballast {

// Owns the results of numbered operations until each is taken, once, by a thread that waits for it or for any of them.
// Does not know what the operations do; each must end by itself. Thread safety: all methods may be called from any
// thread.
template <typename Result>
class CompletionQueue {
 public:
  struct Completed {
    // 0: none completed in time.
    uint64_t operation = 0;
    absl::StatusOr<Result> result = absl::UnknownError("no operation completed");
  };

  // Begins an operation and returns its number, from 1. Errors name it `what`: "pull of 3 tensors". WaitAny passes over
  // one whose owner takes the result by its number.
  uint64_t Begin(std::string what, bool owned = false) {
    absl::MutexLock lock(&mutex_);
    operations_.try_emplace(++last_, Operation{std::move(what), owned, std::nullopt});
    ++in_flight_;
    return last_;
  }

  // Ends an operation that was begun and has not ended.
  void End(uint64_t operation, absl::StatusOr<Result> result) {
    absl::MutexLock lock(&mutex_);
    Operation& ended = operations_.find(operation)->second;
    ended.result.emplace(std::move(result));
    if (!ended.owned) ended_.push_back(operation);
    --in_flight_;
  }

  // Blocks for up to `timeout` until the operation has ended, and takes its result. DEADLINE_EXCEEDED (WAIT_TIMEOUT) if
  // it has not: it goes on, and can be waited for again. NOT_FOUND if there is none, or its result was taken.
  absl::StatusOr<Result> Wait(uint64_t operation, absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const auto found = operations_.find(operation);
      return found == operations_.end() || found->second.result.has_value();
    };
    const bool ended = AwaitWithin(mutex_, absl::Condition(&over), timeout);
    const auto found = operations_.find(operation);
    if (found == operations_.end()) {
      return absl::NotFoundError(absl::StrCat("operation ", operation, ": got none of that number, want one that was ",
                                              "begun and whose result was not taken"));
    }
    if (!ended) {
      return WithReason(v1::ERROR_REASON_WAIT_TIMEOUT,
                        absl::DeadlineExceededError(absl::StrCat("timed out after ", absl::FormatDuration(timeout),
                                                                 " waiting for the ", found->second.what)));
    }
    if (!found->second.owned) ended_.erase(absl::c_find(ended_, operation));
    return TakeLocked(operation);
  }

  // Blocks for up to `timeout` until any operation has ended, also one that begins meanwhile, and takes its result,
  // those that ended first before others. Returns at once after Close, if none is left.
  Completed WaitAny(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !ended_.empty() || closed_; };
    if (!AwaitWithin(mutex_, absl::Condition(&some), timeout) || ended_.empty()) return {};
    const uint64_t operation = ended_.front();
    ended_.pop_front();
    return {operation, TakeLocked(operation)};
  }

  // Ends all present and later waits for any operation.
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }

  bool closed() const {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }

  // Number of operations that have not ended.
  uint64_t in_flight() const {
    absl::MutexLock lock(&mutex_);
    return in_flight_;
  }

 private:
  struct Operation {
    std::string what;
    bool owned = false;
    std::optional<absl::StatusOr<Result>> result;
  };

  // Takes the result of an operation that has ended.
  absl::StatusOr<Result> TakeLocked(uint64_t operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = operations_.find(operation);
    absl::StatusOr<Result> result = *std::move(found->second.result);
    operations_.erase(found);
    return result;
  }

  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  // Operations whose result was not taken.
  absl::flat_hash_map<uint64_t, Operation> operations_ ABSL_GUARDED_BY(mutex_);
  // Those that have ended and are for WaitAny, in that order.
  std::deque<uint64_t> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
