// SPDX-License-Identifier: Apache-2.0
#include "client/call_group.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace ballast {
CallGroup::~CallGroup() {
  Shutdown("client destroyed");
  WaitUntilIdle();
}

void CallGroup::Start(uint64_t tag, CallOptions options, RetryingCall::Attempt attempt, RetryingCall::Done done) {
  std::shared_ptr<RetryingCall> call;
  std::string reason;
  {
    absl::MutexLock lock(&mutex_);
    if (shutdown_) {
      reason = reason_;
    } else {
      const uint64_t id = next_id_++;
      call = std::make_shared<RetryingCall>(
          std::move(options), std::move(attempt),
          [this, id, done = std::move(done)](absl::Status status, uint32_t attempts) mutable {
            done(std::move(status), attempts);
            // Destroy what `done` captured before the group can be destroyed.
            done = nullptr;
            absl::MutexLock lock(&mutex_);
            calls_.erase(id);
          });
      calls_[id] = {tag, call};
    }
  }
  if (call == nullptr) {
    return done(absl::CancelledError(absl::StrCat(options.what(), ": cancelled: ", reason)), 0);
  }
  call->Start();
}

void CallGroup::CancelTagged(uint64_t tag, const std::string& reason) {
  std::vector<std::shared_ptr<RetryingCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, entry] : calls_) {
      if (entry.tag == tag) calls.push_back(entry.call);
    }
  }
  for (const auto& call : calls) call->Cancel(reason);
}

void CallGroup::RetryNow() {
  std::vector<std::shared_ptr<RetryingCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, entry] : calls_) calls.push_back(entry.call);
  }
  for (const auto& call : calls) call->RetryNow();
}

void CallGroup::Shutdown(const std::string& reason) {
  std::vector<std::shared_ptr<RetryingCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    if (shutdown_) return;
    shutdown_ = true;
    reason_ = reason;
    for (const auto& [id, entry] : calls_) calls.push_back(entry.call);
  }
  for (const auto& call : calls) call->Cancel(reason);
}

void CallGroup::WaitUntilIdle() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&calls_, &absl::flat_hash_map<uint64_t, Entry>::empty));
}

bool CallGroup::WaitForShutdown(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&shutdown_), timeout);
}

}  // namespace ballast
