// SPDX-License-Identifier: Apache-2.0
#include "client/retrying_call.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// An attempt's deadline never expires early by more than this.
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(20);

// These attempts and their pauses leave enough time to get a newer shard map; more would not help.
constexpr uint32_t kMaxNotOwner = 6;

// CANCELLED that this client did not cause comes from a server that stopped during the call.
bool IsTransient(const grpc::Status& status, uint32_t failures) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
      return true;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      // A table's memory does not become free by waiting.
      return ReasonOf(FromGrpcStatus(status)) != v1::ERROR_REASON_TABLE_MEMORY;
    case grpc::StatusCode::FAILED_PRECONDITION:
      return failures < kMaxNotOwner && ReasonOf(FromGrpcStatus(status)) == v1::ERROR_REASON_NOT_OWNER;
    default:
      return false;
  }
}

// Returns the delay requested by an overloaded server, otherwise 50 ms.
absl::Duration FirstBackoff(const grpc::Status& status) {
  uint32_t milliseconds = 0;
  if (!absl::SimpleAtoi(SubjectOf(FromGrpcStatus(status), "retry_delay_ms"), &milliseconds)) {
    return absl::Milliseconds(50);
  }
  return std::clamp(absl::Milliseconds(milliseconds), absl::Milliseconds(1), absl::Seconds(2));
}

std::string Elapsed(absl::Duration time) {
  return absl::FormatDuration(absl::Trunc(std::max(time, absl::Milliseconds(1)), absl::Milliseconds(1)));
}

}  // namespace

absl::Duration RetryBackoff(uint32_t attempt, double jitter, absl::Duration first) {
  const absl::Duration full = std::min(first * (1 << std::min(attempt - 2, 10u)), absl::Seconds(2));
  return full * (1 - jitter / 2);
}

RetryingCall::RetryingCall(CallOptions options, Attempt attempt, Done done)
    : options_(std::move(options)), attempt_(std::move(attempt)), done_(std::move(done)) {}

void RetryingCall::Start() {
  {
    absl::MutexLock lock(&mutex_);
    started_ = absl::Now();
  }
  StartAttempt();
}

void RetryingCall::Cancel(std::string reason) {
  std::shared_ptr<CallAttempt> attempt;
  std::shared_ptr<grpc::Alarm> alarm;
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return;
    cancelled_ = true;
    cancel_reason_ = std::move(reason);
    attempt = current_;
    alarm = alarm_;
  }
  if (attempt != nullptr) attempt->Cancel();
  if (alarm != nullptr) alarm->Cancel();
}

void RetryingCall::RetryNow() {
  std::shared_ptr<CallAttempt> attempt;
  std::shared_ptr<grpc::Alarm> alarm;
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return;
    retry_now_ = true;
    failing_since_ = absl::InfiniteFuture();
    failures_ = 0;
    attempt = current_;
    alarm = alarm_;
  }
  if (attempt != nullptr) attempt->Cancel();
  if (alarm != nullptr) alarm->Cancel();
}

void RetryingCall::StartAttempt() {
  std::shared_ptr<CallAttempt> attempt;
  absl::Duration time;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = absl::Now();
    attempt_deadline_ = std::min(now + options_.attempt_timeout, started_ + options_.total_timeout);
    time = attempt_deadline_ - now;
    ++attempts_;
    retry_now_ = false;
    attempt = current_ = std::make_shared<CallAttempt>();
    attempt->set_deadline(absl::ToChronoTime(attempt_deadline_));
    // A call that begins on a cancelled context ends at once with CANCELLED.
    if (cancelled_) attempt->Cancel();
  }
  attempt_(attempt.get(), time, [self = shared_from_this()](grpc::Status status) { self->OnAttemptDone(status); });
}

void RetryingCall::OnAttemptDone(const grpc::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    // The context owns a reference to the channel. If it were the last one after `done` has returned, gRPC 1.51 would
    // end its callback threads from within one of them and free their queue twice.
    current_.reset();
  }
  std::string what = status.ok() ? "" : options_.what();
  absl::Status end;
  uint32_t attempts = 0;
  bool at_once = false;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = absl::Now();
    const bool expired =
        status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED && now + kDeadlineSlack >= attempt_deadline_;
    // An attempt that RetryNow ended had no response either.
    const bool no_response = expired || (retry_now_ && status.error_code() == grpc::StatusCode::CANCELLED);
    const absl::Time last = started_ + options_.total_timeout;
    attempts = attempts_;
    bool retry = !cancelled_ && (no_response || IsTransient(status, failures_));
    at_once = retry && retry_now_ && now < last;
    if (retry && !at_once) {
      failing_since_ = std::min(failing_since_, now);
      absl::BitGen random;
      const absl::Time next =
          now + RetryBackoff(++failures_ + 1, absl::Uniform<double>(random, 0, 1), FirstBackoff(status));
      if (next < std::min(last, failing_since_ + options_.retry_timeout)) {
        // Set it under the lock, so that Cancel finds it either absent or set. It calls back only from another thread.
        alarm_ = std::make_shared<grpc::Alarm>();
        alarm_->Set(absl::ToChronoTime(next), [self = shared_from_this()](bool) { self->OnBackoffOver(); });
        return;
      }
    }
    if (!at_once) end = FinalStatusLocked(std::move(what), status, no_response);
  }
  if (at_once) return StartAttempt();
  done_(std::move(end), attempts);
}

void RetryingCall::OnBackoffOver() {
  std::string what = options_.what();
  absl::Status cancelled;
  uint32_t attempts = 0;
  // Release the alarm, because its callback owns this call, which would be a reference cycle.
  std::shared_ptr<grpc::Alarm> over;
  {
    absl::MutexLock lock(&mutex_);
    over = std::move(alarm_);
    attempts = attempts_;
    if (cancelled_) cancelled = FinalStatusLocked(std::move(what), grpc::Status::CANCELLED, false);
  }
  if (!cancelled.ok()) return done_(std::move(cancelled), attempts);
  StartAttempt();
}

absl::Status RetryingCall::FinalStatusLocked(std::string what, const grpc::Status& status, bool no_response) const {
  if (status.ok()) return absl::OkStatus();
  if (cancelled_) return absl::CancelledError(absl::StrCat(what, ": cancelled: ", cancel_reason_));
  const absl::Duration elapsed = absl::Now() - started_;
  if (no_response || IsTransient(status, 0)) {
    absl::StrAppend(&what, ": gave up after ", Elapsed(elapsed), " and ", attempts_,
                    attempts_ == 1 ? " attempt" : " attempts");
  }
  if (no_response) {
    return WithReason(v1::ERROR_REASON_UNREACHABLE, absl::DeadlineExceededError(absl::StrCat(what, ": no response")));
  }
  if (status.error_code() == grpc::StatusCode::CANCELLED) {
    return WithReason(v1::ERROR_REASON_DRAINING, absl::UnavailableError(absl::StrCat(
                                                     what, ": the server ended the call: ", status.error_message())));
  }
  return FromGrpcStatus(status, what);
}

}  // namespace ballast
