// SPDX-License-Identifier: Apache-2.0
#include "client/retrying_call.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/grpc_status.h"

namespace ballast {
namespace {

// An attempt's own deadline never rings early by more than this.
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(20);

// CANCELLED that is not our own comes from a server that was stopped under the call.
bool IsPassing(grpc::StatusCode code) {
  return code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::RESOURCE_EXHAUSTED ||
         code == grpc::StatusCode::CANCELLED;
}

// What a server that has too much to do asks for; else 50 ms.
absl::Duration FirstBackoff(const grpc::ClientContext& ended) {
  const auto& trailers = ended.GetServerTrailingMetadata();
  const auto delay = trailers.find("retry-delay-ms");
  uint32_t milliseconds = 0;
  if (delay == trailers.end() ||
      !absl::SimpleAtoi(absl::string_view(delay->second.data(), delay->second.size()), &milliseconds)) {
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
  std::shared_ptr<grpc::ClientContext> context;
  std::shared_ptr<grpc::Alarm> alarm;
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return;
    cancelled_ = true;
    cancel_reason_ = std::move(reason);
    context = context_;
    alarm = alarm_;
  }
  if (context != nullptr) context->TryCancel();
  if (alarm != nullptr) alarm->Cancel();
}

void RetryingCall::StartAttempt() {
  std::shared_ptr<grpc::ClientContext> context;
  absl::Duration time;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = absl::Now();
    attempt_deadline_ = std::min(now + options_.attempt_timeout, started_ + options_.total_timeout);
    time = attempt_deadline_ - now;
    ++attempts_;
    context = context_ = std::make_shared<grpc::ClientContext>();
    context->set_deadline(absl::ToChronoTime(attempt_deadline_));
    // A call that begins on a cancelled context ends at once with CANCELLED.
    if (cancelled_) context->TryCancel();
  }
  attempt_(context.get(), time, [self = shared_from_this()](grpc::Status status) { self->OnAttemptDone(status); });
}

void RetryingCall::OnAttemptDone(const grpc::Status& status) {
  absl::Status end;
  uint32_t attempts = 0;
  std::shared_ptr<grpc::ClientContext> ended;
  {
    absl::MutexLock lock(&mutex_);
    ended = std::move(context_);
    const absl::Time now = absl::Now();
    const bool no_answer =
        status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED && now + kDeadlineSlack >= attempt_deadline_;
    attempts = attempts_;
    failing_since_ = std::min(failing_since_, now);
    absl::BitGen random;
    const absl::Time next = now + RetryBackoff(attempts + 1, absl::Uniform<double>(random, 0, 1), FirstBackoff(*ended));
    const bool retry = !cancelled_ && (no_answer || IsPassing(status.error_code())) &&
                       next < std::min(started_ + options_.total_timeout, failing_since_ + options_.retry_timeout);
    if (retry) {
      // Under the lock, so that Cancel finds it either not made or set; it calls back from another thread only.
      alarm_ = std::make_shared<grpc::Alarm>();
      alarm_->Set(absl::ToChronoTime(next), [self = shared_from_this()](bool) { self->OnBackoffOver(); });
      return;
    }
    end = FinalStatusLocked(status, no_answer);
  }
  // It holds the channel. Were it the last to do so, once `done` has returned, gRPC 1.51 would end its callback threads
  // from within one of them and free their queue twice.
  ended.reset();
  done_(std::move(end), attempts);
}

void RetryingCall::OnBackoffOver() {
  absl::Status cancelled;
  uint32_t attempts = 0;
  // Its callback holds this call: kept, the two would hold each other.
  std::shared_ptr<grpc::Alarm> over;
  {
    absl::MutexLock lock(&mutex_);
    over = std::move(alarm_);
    attempts = attempts_;
    if (cancelled_) cancelled = FinalStatusLocked(grpc::Status::CANCELLED, false);
  }
  if (!cancelled.ok()) return done_(std::move(cancelled), attempts);
  StartAttempt();
}

absl::Status RetryingCall::FinalStatusLocked(const grpc::Status& status, bool no_answer) const {
  if (status.ok()) return absl::OkStatus();
  if (cancelled_) return absl::CancelledError(absl::StrCat(options_.what, ": cancelled: ", cancel_reason_));
  const absl::Duration elapsed = absl::Now() - started_;
  std::string context = options_.what;
  if (no_answer || IsPassing(status.error_code())) {
    absl::StrAppend(&context, ": gave up after ", Elapsed(elapsed), " and ", attempts_,
                    attempts_ == 1 ? " attempt" : " attempts");
  }
  if (status.error_code() == grpc::StatusCode::CANCELLED) {
    return absl::UnavailableError(absl::StrCat(context, ": the server ended the call: ", status.error_message()));
  }
  if (!no_answer) return FromGrpcStatus(status, context);
  return absl::DeadlineExceededError(absl::StrCat(context, ": no answer"));
}

}  // namespace ballast
