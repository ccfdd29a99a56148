// SPDX-License-Identifier: Apache-2.0
#include "client/retrying_call.h"

#include <deque>
#include <vector>

#include "client/future.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

struct Ending {
  absl::Status status;
  uint32_t attempts = 0;
};

CallOptions Options() {
  return {[] { return "shard 1 at host:1: push"; }, absl::Seconds(60), absl::Seconds(60), absl::Seconds(60)};
}

// Runs a call whose attempts end at once with the given statuses; the last status repeats.
std::pair<std::shared_ptr<RetryingCall>, Future<Ending>> Call(std::deque<grpc::Status> statuses,
                                                              CallOptions options = Options()) {
  Promise<Ending> promise;
  Future<Ending> future = promise.GetFuture();
  auto call = std::make_shared<RetryingCall>(
      std::move(options),
      [statuses](grpc::ClientContext*, absl::Duration, std::function<void(grpc::Status)> end) mutable {
        const grpc::Status status = statuses.front();
        if (statuses.size() > 1) statuses.pop_front();
        end(status);
      },
      [promise = std::move(promise)](absl::Status status, uint32_t attempts) mutable {
        promise.Set(Ending{std::move(status), attempts});
      });
  return {call, future};
}

TEST(RetryingCallTest, TriesAgainWhileUnavailableOrExhausted) {
  auto [call, end] = Call({grpc::Status(grpc::StatusCode::UNAVAILABLE, "starting"),
                           grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "busy"), grpc::Status::OK});
  call->Start();
  EXPECT_TRUE(end.Get()->status.ok());
  EXPECT_EQ(end.Get()->attempts, 3);
}

TEST(RetryingCallTest, RefusalIsFinal) {
  auto [call, end] = Call({grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "too short")});
  call->Start();
  EXPECT_EQ(end.Get()->status, absl::InvalidArgumentError("shard 1 at host:1: push: too short"));
  EXPECT_EQ(end.Get()->attempts, 1);
}

TEST(RetryingCallTest, DeadlineThatTheServerSentIsFinal) {
  auto [call, end] = Call({grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "waited for worker 3")});
  call->Start();
  EXPECT_EQ(end.Get()->status, absl::DeadlineExceededError("shard 1 at host:1: push: waited for worker 3"));
  EXPECT_EQ(end.Get()->attempts, 1);
}

TEST(RetryingCallTest, MissingAnswerIsTriedAgain) {
  CallOptions options = Options();
  options.attempt_timeout = absl::ZeroDuration();
  auto [call, end] =
      Call({grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"), grpc::Status::OK}, options);
  call->Start();
  EXPECT_TRUE(end.Get()->status.ok());
  EXPECT_EQ(end.Get()->attempts, 2);
}

TEST(RetryingCallTest, GivesUpSayingHowLongAndHowOftenAndWhy) {
  CallOptions options = Options();
  options.retry_timeout = absl::ZeroDuration();
  auto [call, end] = Call({grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection refused")}, options);
  call->Start();
  EXPECT_EQ(end.Get()->status,
            absl::UnavailableError("shard 1 at host:1: push: gave up after 1ms and 1 attempt: connection refused"));
}

TEST(RetryingCallTest, CallThatTheServerDroppedIsTriedAgain) {
  auto [call, end] = Call({grpc::Status(grpc::StatusCode::CANCELLED, "CANCELLED"), grpc::Status::OK});
  call->Start();
  EXPECT_TRUE(end.Get()->status.ok());
  EXPECT_EQ(end.Get()->attempts, 2);
}

TEST(RetryingCallTest, CancelEndsTheBackoff) {
  auto [call, end] = Call({grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone")});
  call->Start();
  call->Cancel("job failed");
  EXPECT_EQ(end.Get()->status, absl::CancelledError("shard 1 at host:1: push: cancelled: job failed"));
}

// Counts attempts, which end when the test ends them.
struct Attempts {
  absl::Mutex mutex;
  std::vector<std::function<void(grpc::Status)>> ends ABSL_GUARDED_BY(mutex);

  std::function<void(grpc::Status)> Await(size_t count) {
    absl::MutexLock lock(&mutex);
    const auto begun = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return ends.size() >= count; };
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&begun), absl::Minutes(1)));
    return ends.at(count - 1);
  }
};

std::pair<std::shared_ptr<RetryingCall>, Future<Ending>> SlowCall(Attempts* attempts, CallOptions options) {
  Promise<Ending> promise;
  Future<Ending> future = promise.GetFuture();
  auto call = std::make_shared<RetryingCall>(
      std::move(options),
      [attempts](grpc::ClientContext*, absl::Duration, std::function<void(grpc::Status)> end) {
        absl::MutexLock lock(&attempts->mutex);
        attempts->ends.push_back(std::move(end));
      },
      [promise = std::move(promise)](absl::Status status, uint32_t count) mutable {
        promise.Set(Ending{std::move(status), count});
      });
  return {call, future};
}

TEST(RetryingCallTest, RetryNowBeginsTheNextAttemptWhenTheLastHasEnded) {
  Attempts attempts;
  CallOptions options = Options();
  // There is no time for retries, but an attempt that RetryNow ended does not count as failed.
  options.retry_timeout = absl::ZeroDuration();
  auto [call, end] = SlowCall(&attempts, std::move(options));
  call->Start();
  const auto first = attempts.Await(1);
  call->RetryNow();
  call->RetryNow();
  first(grpc::Status::CANCELLED);
  EXPECT_FALSE(end.Ready());
  attempts.Await(2)(grpc::Status::OK);
  EXPECT_TRUE(end.Get()->status.ok());
  EXPECT_EQ(end.Get()->attempts, 2);
}

TEST(RetryingCallTest, AnswerThatComesBeforeTheHurryCounts) {
  Attempts attempts;
  auto [call, end] = SlowCall(&attempts, Options());
  call->Start();
  call->RetryNow();
  attempts.Await(1)(grpc::Status::OK);
  EXPECT_TRUE(end.Get()->status.ok());
  EXPECT_EQ(end.Get()->attempts, 1);
  call->RetryNow();
}

TEST(RetryingCallTest, RefusalIsFinalInSpiteOfTheHurry) {
  Attempts attempts;
  auto [call, end] = SlowCall(&attempts, Options());
  call->Start();
  call->RetryNow();
  attempts.Await(1)(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "too short"));
  EXPECT_EQ(end.Get()->status, absl::InvalidArgumentError("shard 1 at host:1: push: too short"));
}

TEST(RetryingCallTest, RetryNowEndsTheBackoff) {
  Attempts attempts;
  auto [call, end] = SlowCall(&attempts, Options());
  call->Start();
  const absl::Time begun = absl::Now();
  for (size_t attempt = 1; attempt <= 400; ++attempt) {
    attempts.Await(attempt)(grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"));
    call->RetryNow();
  }
  attempts.Await(401)(grpc::Status::OK);
  EXPECT_TRUE(end.Get()->status.ok());
  // With pauses, even the shortest ones would take longer.
  EXPECT_LT(absl::Now() - begun, 400 * absl::Milliseconds(25));
}

TEST(RetryingCallTest, CancelEndsACallThatWasHurried) {
  Attempts attempts;
  auto [call, end] = SlowCall(&attempts, Options());
  call->Start();
  call->RetryNow();
  call->Cancel("job failed");
  attempts.Await(1)(grpc::Status::CANCELLED);
  EXPECT_EQ(end.Get()->status, absl::CancelledError("shard 1 at host:1: push: cancelled: job failed"));
  call->RetryNow();
}

TEST(RetryingCallTest, BackoffDoublesToItsLimit) {
  EXPECT_EQ(RetryBackoff(2, 0, absl::Milliseconds(50)), absl::Milliseconds(50));
  EXPECT_EQ(RetryBackoff(3, 0, absl::Milliseconds(50)), absl::Milliseconds(100));
  EXPECT_EQ(RetryBackoff(3, 1, absl::Milliseconds(50)), absl::Milliseconds(50));
  EXPECT_EQ(RetryBackoff(1000, 0, absl::Milliseconds(50)), absl::Seconds(2));
}

}  // namespace
}  // namespace ballast
