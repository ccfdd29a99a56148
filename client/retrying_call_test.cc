// SPDX-License-Identifier: Apache-2.0
#include "client/retrying_call.h"

#include <deque>
#include <vector>

#include "client/future.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

struct Ending {
  absl::Status status;
  uint32_t attempts = 0;
};

class RetryingCallTest : public testing::Test {
 protected:
  // Starts a call whose attempts end at once with these statuses; the last repeats. Without any, EndAttempt ends them.
  Future<Ending> Start(std::deque<grpc::Status> statuses = {}) {
    Promise<Ending> promise;
    Future<Ending> future = promise.GetFuture();
    call_ = std::make_shared<RetryingCall>(
        options_,
        [this, statuses](grpc::ClientContext*, absl::Duration, std::function<void(grpc::Status)> end) mutable {
          if (statuses.empty()) {
            absl::MutexLock lock(&mutex_);
            return ends_.push_back(std::move(end));
          }
          const grpc::Status status = statuses.front();
          if (statuses.size() > 1) statuses.pop_front();
          end(status);
        },
        [promise = std::move(promise)](absl::Status status, uint32_t attempts) mutable {
          promise.Set(Ending{std::move(status), attempts});
        });
    call_->Start();
    return future;
  }

  // Ends that attempt (from 1), once it has begun.
  void EndAttempt(size_t number, const grpc::Status& status) {
    const auto begun = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ends_.size() >= number; };
    absl::ReleasableMutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&begun), absl::Minutes(1)));
    const auto end = ends_.at(number - 1);
    lock.Release();
    end(status);
  }

  // `error` follows the call's name; empty: the call succeeds.
  static void ExpectEnd(const Future<Ending>& end, absl::StatusCode code, const std::string& error, uint32_t attempts) {
    EXPECT_EQ(end.Get()->status.code(), code);
    EXPECT_EQ(end.Get()->status.message(), error.empty() ? "" : "shard 1 at host:1: push: " + error);
    EXPECT_EQ(end.Get()->attempts, attempts);
  }

  CallOptions options_ = {[] { return "shard 1 at host:1: push"; }, absl::Seconds(60), absl::Seconds(60),
                          absl::Seconds(60)};
  std::shared_ptr<RetryingCall> call_;
  absl::Mutex mutex_;
  std::vector<std::function<void(grpc::Status)>> ends_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(RetryingCallTest, TriesAgainWhileUnavailableOrExhausted) {
  const auto end = Start({{grpc::UNAVAILABLE, "starting"}, {grpc::RESOURCE_EXHAUSTED, "busy"}, {}});
  ExpectEnd(end, absl::StatusCode::kOk, "", 3);
}

TEST_F(RetryingCallTest, ATableWithoutMemoryIsFinal) {
  const absl::Status full = WithReason(v1::ERROR_REASON_TABLE_MEMORY, absl::ResourceExhaustedError("no room"));
  ExpectEnd(Start({ToGrpcStatus(full)}), absl::StatusCode::kResourceExhausted, "no room", 1);
}

TEST_F(RetryingCallTest, RefusalIsFinal) {
  ExpectEnd(Start({{grpc::INVALID_ARGUMENT, "too short"}}), absl::StatusCode::kInvalidArgument, "too short", 1);
}

TEST_F(RetryingCallTest, DeadlineThatTheServerSentIsFinal) {
  const auto end = Start({{grpc::DEADLINE_EXCEEDED, "waited for worker 3"}});
  ExpectEnd(end, absl::StatusCode::kDeadlineExceeded, "waited for worker 3", 1);
}

TEST_F(RetryingCallTest, MissingAnswerIsTriedAgain) {
  options_.attempt_timeout = absl::ZeroDuration();
  ExpectEnd(Start({{grpc::DEADLINE_EXCEEDED, "Deadline Exceeded"}, {}}), absl::StatusCode::kOk, "", 2);
}

TEST_F(RetryingCallTest, GivesUpSayingHowLongAndHowOftenAndWhy) {
  options_.retry_timeout = absl::ZeroDuration();
  ExpectEnd(Start({{grpc::UNAVAILABLE, "connection refused"}}), absl::StatusCode::kUnavailable,
            "gave up after 1ms and 1 attempt: connection refused", 1);
}

TEST_F(RetryingCallTest, CallThatTheServerDroppedIsTriedAgain) {
  ExpectEnd(Start({{grpc::CANCELLED, "CANCELLED"}, {}}), absl::StatusCode::kOk, "", 2);
}

TEST_F(RetryingCallTest, CancelEndsTheBackoff) {
  const auto end = Start({{grpc::UNAVAILABLE, "gone"}});
  call_->Cancel("job failed");
  EXPECT_EQ(end.Get()->status, absl::CancelledError("shard 1 at host:1: push: cancelled: job failed"));
}

TEST_F(RetryingCallTest, RetryNowBeginsTheNextAttemptWhenTheLastHasEnded) {
  // There is no time for retries, but an attempt that RetryNow ended does not count as failed.
  options_.retry_timeout = absl::ZeroDuration();
  const auto end = Start();
  call_->RetryNow();
  call_->RetryNow();
  EndAttempt(1, grpc::Status::CANCELLED);
  EXPECT_FALSE(end.Ready());
  EndAttempt(2, grpc::Status::OK);
  ExpectEnd(end, absl::StatusCode::kOk, "", 2);
}

TEST_F(RetryingCallTest, AnswerThatComesBeforeTheHurryCounts) {
  const auto end = Start();
  call_->RetryNow();
  EndAttempt(1, grpc::Status::OK);
  ExpectEnd(end, absl::StatusCode::kOk, "", 1);
  call_->RetryNow();
}

TEST_F(RetryingCallTest, RefusalIsFinalInSpiteOfTheHurry) {
  const auto end = Start();
  call_->RetryNow();
  EndAttempt(1, {grpc::INVALID_ARGUMENT, "too short"});
  ExpectEnd(end, absl::StatusCode::kInvalidArgument, "too short", 1);
}

TEST_F(RetryingCallTest, RetryNowEndsTheBackoff) {
  const auto end = Start();
  const absl::Time begun = absl::Now();
  for (size_t attempt = 1; attempt <= 400; ++attempt) {
    EndAttempt(attempt, {grpc::UNAVAILABLE, "gone"});
    call_->RetryNow();
  }
  EndAttempt(401, grpc::Status::OK);
  EXPECT_TRUE(end.Get()->status.ok());
  // With pauses, even the shortest ones would take longer.
  EXPECT_LT(absl::Now() - begun, 400 * absl::Milliseconds(25));
}

TEST_F(RetryingCallTest, CancelEndsACallThatWasHurried) {
  const auto end = Start();
  call_->RetryNow();
  call_->Cancel("job failed");
  EndAttempt(1, grpc::Status::CANCELLED);
  EXPECT_EQ(end.Get()->status, absl::CancelledError("shard 1 at host:1: push: cancelled: job failed"));
  call_->RetryNow();
}

TEST_F(RetryingCallTest, BackoffDoublesToItsLimit) {
  EXPECT_EQ(RetryBackoff(2, 0, absl::Milliseconds(50)), absl::Milliseconds(50));
  EXPECT_EQ(RetryBackoff(3, 0, absl::Milliseconds(50)), absl::Milliseconds(100));
  EXPECT_EQ(RetryBackoff(3, 1, absl::Milliseconds(50)), absl::Milliseconds(50));
  EXPECT_EQ(RetryBackoff(1000, 0, absl::Milliseconds(50)), absl::Seconds(2));
}

}  // namespace
}  // namespace ballast
