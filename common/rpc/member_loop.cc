// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/member_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/grpc_status.h"

namespace ballast {

bool IsUnresponsive(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status);
}

absl::Status FromAttempt(const grpc::Status& status, absl::string_view context) {
  if (status.error_code() != grpc::StatusCode::CANCELLED) return FromGrpcStatus(status, context);
  return FromGrpcStatus(
      {grpc::StatusCode::UNAVAILABLE, absl::StrCat("the server ended the call: ", status.error_message())}, context);
}

absl::Duration HeartbeatInterval(const v1::JoinResponse& joined, const v1::HeartbeatResponse& last) {
  return absl::Milliseconds(last.interval_ms() > 0 ? last.interval_ms() : std::max(joined.heartbeat_interval_ms(), 1u));
}

void MemberLoop::Start(Step step) {
  if (thread_.joinable()) return;
  thread_ = std::thread([this, step = std::move(step)] {
    std::optional<absl::Duration> pause = absl::ZeroDuration();
    while (pause.has_value() && AwaitNextStep(*pause)) pause = step();
  });
}

bool MemberLoop::AwaitNextStep(absl::Duration pause) {
  absl::MutexLock lock(&mutex_);
  const auto woken = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || hastened_; };
  mutex_.AwaitWithTimeout(absl::Condition(&woken), pause);
  hastened_ = false;
  return !stopping_;
}

void MemberLoop::HeartbeatNow() {
  absl::MutexLock lock(&mutex_);
  hastened_ = true;
}

void MemberLoop::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (calling_ != nullptr) calling_->TryCancel();
  }
  if (thread_.joinable()) thread_.join();
}

bool MemberLoop::stopping() const {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

absl::Status MemberLoop::Call(Attempt attempt, absl::Duration pause, RetryUntil retry_until) {
  while (true) {
    grpc::ClientContext context;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return absl::CancelledError("the member is stopping");
      calling_ = &context;
    }
    const absl::Status status = attempt(&context);
    {
      absl::MutexLock lock(&mutex_);
      calling_ = nullptr;
      if (stopping_ || status.ok()) return status;
    }
    if (clock_->Now() >= retry_until(status)) return status;
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), pause);
  }
}

}  // namespace ballast
