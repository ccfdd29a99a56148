// SPDX-License-Identifier: Apache-2.0
#include "server/shard/parameter_shard.h"

#include <chrono>
#include <cmath>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "common/status/error_reason.h"
#include "gtest/gtest.h"
#include "server/shard/shard_fixture.h"

namespace ballast {
namespace {

class ParameterShardTest : public testing::Test {
 protected:
  static JobConfig Job(bool sync, uint32_t workers) {
    JobConfig job{"job", {}, workers, {}};
    if (sync) {
      job.policy.mutable_sync()->set_deterministic(true);
    } else {
      job.policy.mutable_async();
    }
    return job;
  }

  void Declare(bool sync, uint32_t workers) {
    auto owned = shard_.Declare(Job(sync, workers), {Tensor(1, "w", 3)});
    ASSERT_TRUE(owned.ok()) << owned.status();
  }

  absl::StatusOr<PushOutcome> Push(uint32_t worker, uint64_t sequence, uint64_t step, std::vector<float> gradient,
                                   uint64_t version = 0) {
    return PushBytes(worker, sequence, step, v1::ENCODING_FP32, Bytes(gradient), version);
  }

  absl::StatusOr<PushOutcome> PushBytes(uint32_t worker, uint64_t sequence, uint64_t step, v1::Encoding encoding,
                                        absl::string_view payload, uint64_t version = 0) {
    const GradientView view{{1, 0}, version, encoding, {&payload, 1}};
    return shard_.Push("job", {worker, 1, sequence, step, 1}, {view});
  }

  std::vector<float> Values() {
    absl::StatusOr<PulledValues> snapshot = shard_.Pull({1, 0}, std::nullopt);
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    return {snapshot->values.values().begin(), snapshot->values.values().end()};
  }

  // The status with which a pull ended; kUnknown while it waits.
  void Await(uint64_t step, absl::Status& ended) {
    ended = absl::UnknownError("waits");
    ticket_ = shard_.AwaitPull("job", {.step = step}, {{1, 0}}, absl::Seconds(30), /*by_reader=*/false,
                               [&](absl::Status status) { ended = status; });
  }

  // Number of waiting pulls, of one slice each, that fit the memory limit.
  static constexpr int kWaits = 8;

  ManualClock clock_;
  ParameterShard shard_{{.rank = 3, .max_state_bytes = 1 << 20, .max_wait_bytes = kWaits * PullWait::BytesOf(1)},
                        &clock_};
  WaitList::Ticket ticket_ = WaitList::kNoTicket;
};

TEST_F(ParameterShardTest, AsyncAppliesAPushAtOnce) {
  Declare(false, 2);
  auto outcome = Push(0, 1, 0, {1, 2, 3});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->applied, 1);
  EXPECT_EQ(Values(), (std::vector<float>{-1, -2, -3}));
}

TEST_F(ParameterShardTest, CountsStalenessFromTheVersionOfTheGradient) {
  Declare(false, 2);
  ASSERT_TRUE(Push(0, 1, 0, {1, 1, 1}).ok());
  ASSERT_TRUE(Push(0, 2, 1, {1, 1, 1}, 1).ok());
  EXPECT_EQ(Push(1, 1, 0, {1, 1, 1}, 0)->max_staleness, 2);
  EXPECT_EQ(shard_.status().max_staleness, 2);
}

TEST_F(ParameterShardTest, AppliesARetriedPushOnce) {
  Declare(false, 1);
  ASSERT_TRUE(Push(0, 1, 0, {1, 1, 1}).ok());
  auto again = Push(0, 1, 0, {1, 1, 1});
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->duplicate);
  EXPECT_EQ(again->applied, 1);
  EXPECT_EQ(Values(), (std::vector<float>{-1, -1, -1}));
  EXPECT_EQ(shard_.status().duplicates, 1);
}

TEST_F(ParameterShardTest, CountsPushesOfOldIncarnations) {
  Declare(false, 1);
  const std::vector<float> values = {1, 1, 1};
  const absl::string_view payload = Bytes(values);
  const GradientView view{{1, 0}, 0, v1::ENCODING_FP32, {&payload, 1}};
  PayloadCounts received;
  ASSERT_TRUE(shard_.Push("job", {0, /*incarnation=*/2, 1, 0, 1}, {view}, &received).ok());
  EXPECT_EQ(shard_.Push("job", {0, /*incarnation=*/1, 1, 0, 1}, {view}, &received).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(shard_.status().old_incarnation, 1u);
  EXPECT_EQ(received.encoded(), 12u) << "without what was refused";
  ASSERT_TRUE(shard_.Push("job", {0, /*incarnation=*/2, 1, 0, 1}, {view}, &received).ok());
  EXPECT_EQ(received.encoded(), 24u) << "a repeated push was received again";
}

TEST_F(ParameterShardTest, CountsTheBytesOfWeightsThatUpdatesChange) {
  Declare(true, 2);
  ASSERT_TRUE(Push(0, 1, 0, {1, 1, 1}).ok());
  EXPECT_EQ(shard_.status().applied_bytes, 0u) << "the step is not complete";
  EXPECT_EQ(shard_.status().memory.policies, 12u);
  ASSERT_TRUE(Push(1, 1, 0, {1, 1, 1}).ok());
  EXPECT_EQ(shard_.status().applied_bytes, 12u);
  EXPECT_EQ(shard_.status().memory.weights, 12u);
  EXPECT_EQ(shard_.status().waited_for_locks, absl::ZeroDuration());
}

TEST_F(ParameterShardTest, SyncPullWaitsForAllWorkersOfTheStepBefore) {
  Declare(true, 2);
  absl::Status ended;
  Await(0, ended);
  EXPECT_TRUE(ended.ok());
  ASSERT_TRUE(Push(0, 1, 0, {2, 2, 2}).ok());
  Await(1, ended);
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnknown);
  ASSERT_TRUE(Push(1, 1, 0, {4, 4, 4}).ok());
  EXPECT_TRUE(ended.ok());
  EXPECT_EQ(Values(), (std::vector<float>{-3, -3, -3}));
}

TEST_F(ParameterShardTest, PullThatNeedNotWaitIsAnsweredWhateverItsDeadline) {
  Declare(false, 2);
  absl::Status ended = absl::UnknownError("waits");
  shard_.AwaitPull("job", {.step = 7}, {{1, 0}}, -absl::Seconds(1), /*by_reader=*/false,
                   [&](absl::Status status) { ended = status; });
  EXPECT_TRUE(ended.ok()) << ended;
}

TEST_F(ParameterShardTest, WaitRunsOutNamingTheWorkersWaitedFor) {
  Declare(true, 3);
  ASSERT_TRUE(Push(1, 1, 0, {2, 2, 2}).ok());
  std::promise<absl::Status> done;
  shard_.AwaitPull("job", {.step = 1}, {{1, 0}}, absl::ZeroDuration(), /*by_reader=*/false,
                   [&](absl::Status status) { done.set_value(status); });
  std::future<absl::Status> ended = done.get_future();
  ASSERT_EQ(ended.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  const absl::Status late = ended.get();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.message(), "shard 3: pull of \"w\" slice 0 at step 1 waits for the gradient of worker 0, 2");
  EXPECT_EQ(ReasonOf(late), v1::ERROR_REASON_WAIT_TIMEOUT);
  EXPECT_EQ(SubjectOf(late, "workers"), "0,2");
}

TEST_F(ParameterShardTest, PullCannotAskForASliceTwice) {
  Declare(true, 2);
  absl::Status ended;
  shard_.AwaitPull("job", {.step = 1}, {{1, 0}, {1, 0}}, absl::Seconds(30), /*by_reader=*/false,
                   [&](absl::Status status) { ended = status; });
  EXPECT_EQ(ended, absl::InvalidArgumentError("shard 3: pull: got slice 0 of tensor 1 twice, want each slice once"));
  EXPECT_EQ(shard_.status().waiting, 0);
}

TEST_F(ParameterShardTest, WaitsHoldNoMemoryOnceTheyHaveEnded) {
  Declare(true, 2);
  absl::Status answered, cancelled;
  Await(1, answered);
  Await(2, cancelled);
  EXPECT_EQ(shard_.status().wait_bytes, 2 * PullWait::BytesOf(1));
  shard_.CancelPull(ticket_);
  EXPECT_TRUE(absl::IsCancelled(cancelled)) << cancelled;
  ASSERT_TRUE(Push(0, 1, 0, {1, 1, 1}).ok());
  ASSERT_TRUE(Push(1, 1, 0, {1, 1, 1}).ok());
  EXPECT_TRUE(answered.ok()) << answered;
  EXPECT_EQ(shard_.status().wait_bytes, 0);
  EXPECT_EQ(shard_.status().waiting, 0);
}

TEST_F(ParameterShardTest, PullsBeyondTheMemoryOfWaitsAreRefusedAndThoseThatNeedNotWaitAreNot) {
  Declare(true, 2);
  std::vector<absl::Status> ended(kWaits);
  int refused = 0;
  for (absl::Status& one : ended) {
    Await(1, one);
    refused += absl::IsResourceExhausted(one) ? 1 : 0;
  }
  // Readers have a quarter of the memory to themselves.
  EXPECT_EQ(refused, kWaits / 4);
  EXPECT_EQ(shard_.status().refused_waits, refused);
  absl::Status now;
  Await(0, now);
  EXPECT_TRUE(now.ok()) << now;
  shard_.Close(absl::UnavailableError("drains"));
}

TEST_F(ParameterShardTest, ReadersThatWaitLeaveRoomForWorkers) {
  Declare(true, 2);
  absl::Status reader, worker;
  for (int i = 0; i < kWaits; ++i) {
    shard_.AwaitPull("job", {.step = 1}, {{1, 0}}, absl::Seconds(30), /*by_reader=*/true,
                     [&](absl::Status status) { reader = status; });
  }
  EXPECT_TRUE(absl::IsResourceExhausted(reader)) << reader;
  Await(1, worker);
  EXPECT_EQ(worker.code(), absl::StatusCode::kUnknown);
  shard_.Close(absl::UnavailableError("drains"));
}

TEST_F(ParameterShardTest, PullOfSeveralSlicesIsAnsweredOnceAllOfThemAllowIt) {
  ASSERT_TRUE(shard_.Declare(Job(true, 1), {Tensor(1, "w", 3), Tensor(2, "v", 3)}).ok());
  absl::Status ended = absl::UnknownError("waits");
  shard_.AwaitPull("job", {.step = 1}, {{2, 0}, {1, 0}}, absl::Seconds(30), /*by_reader=*/false,
                   [&](absl::Status status) { ended = status; });
  const std::vector<float> ones = {1, 1, 1};
  const absl::string_view payload = Bytes(ones);
  for (uint32_t tensor : {1, 2}) {
    EXPECT_EQ(ended.code(), absl::StatusCode::kUnknown);
    ASSERT_TRUE(shard_.Push("job", {0, 1, tensor, 0, 1}, {{{tensor, 0}, 0, v1::ENCODING_FP32, {&payload, 1}}}).ok());
  }
  EXPECT_TRUE(ended.ok()) << ended;
}

TEST_F(ParameterShardTest, CloseEndsWaitsAndRefusesPushes) {
  Declare(true, 2);
  absl::Status ended;
  Await(1, ended);
  shard_.Close(absl::UnavailableError("shard 3 drains"));
  EXPECT_EQ(ended, absl::UnavailableError("shard 3 drains"));
  EXPECT_EQ(Push(0, 1, 0, {1, 1, 1}).status(), absl::UnavailableError("shard 3 drains"));
  Await(1, ended);
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable);
}

TEST_F(ParameterShardTest, ClosedShardStillHandsOutTheNewestValues) {
  Declare(true, 2);
  shard_.Close(absl::AbortedError("the job has failed"));
  absl::Status ended;
  Await(0, ended);
  EXPECT_TRUE(ended.ok()) << ended;
}

TEST_F(ParameterShardTest, RefusesAGradientOfTheWrongSizeAndChangesNothing) {
  Declare(false, 1);
  EXPECT_EQ(Push(0, 1, 0, {1, 2}).status(),
            absl::InvalidArgumentError("shard 3: gradient of \"w\" slice 0 has 2 elements, want 3"));
  EXPECT_EQ(Values(), (std::vector<float>{0, 0, 0}));
  EXPECT_FALSE(Push(0, 1, 0, {1, 2, 3})->duplicate);
}

TEST_F(ParameterShardTest, RefusesNanAndInfinity) {
  Declare(false, 1);
  EXPECT_EQ(Push(0, 1, 0, {1, NAN, 3}).status(),
            absl::InvalidArgumentError("shard 3: gradient of \"w\" slice 0 by worker 0 at step 0 has NaN or infinity, "
                                       "want finite numbers"));
  EXPECT_EQ(Push(0, 1, 0, {1, 2, -INFINITY}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Values(), (std::vector<float>{0, 0, 0}));
}

TEST_F(ParameterShardTest, ValuesThatWerePulledStayAsTheyAre) {
  Declare(false, 1);
  const PulledValues before = *shard_.Pull({1, 0}, std::nullopt);
  ASSERT_TRUE(Push(0, 1, 0, {1, 2, 3}).ok());
  const PulledValues after = *shard_.Pull({1, 0}, std::nullopt);
  EXPECT_EQ(before.version, 0u);
  EXPECT_EQ(before.values.values(), (absl::Span<const float>({0, 0, 0})));
  EXPECT_EQ(after.version, 1u);
  EXPECT_EQ(after.values.values(), (absl::Span<const float>({-1, -2, -3})));
}

TEST_F(ParameterShardTest, AppliesAGradientInAnotherEncoding) {
  Declare(false, 1);
  const std::vector<uint16_t> bf16 = {0x3f80, 0x4000, 0xc000};
  const absl::string_view payload(reinterpret_cast<const char*>(bf16.data()), 6);
  ASSERT_TRUE(PushBytes(0, 1, 0, v1::ENCODING_BF16, payload).ok());
  EXPECT_EQ(Values(), (std::vector<float>{-1, -2, 2}));
}

TEST_F(ParameterShardTest, RefusesAPayloadThatIsNotWhatItsEncodingSays) {
  Declare(false, 1);
  EXPECT_EQ(PushBytes(0, 1, 0, v1::ENCODING_INT8, "123456").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PushBytes(0, 1, 0, static_cast<v1::Encoding>(99), "1234567").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Values(), (std::vector<float>{0, 0, 0}));
}

TEST_F(ParameterShardTest, AcceptsANonFiniteGradientWhereTheJobSaysSo) {
  JobConfig job = Job(false, 1);
  job.policy.set_accept_non_finite(true);
  ASSERT_TRUE(shard_.Declare(job, {Tensor(1, "w", 3)}).ok());
  ASSERT_TRUE(Push(0, 1, 0, {1, NAN, 2}).ok());
  EXPECT_TRUE(std::isnan(Values()[1]));
  EXPECT_EQ(Values()[2], -2);
}

TEST_F(ParameterShardTest, SyncRefusesAStepFromTheFuture) {
  Declare(true, 2);
  EXPECT_EQ(
      Push(0, 1, 4, {1, 2, 3}).status().message(),
      "shard 3: \"w\" slice 0: worker 0: got a gradient for step 4, want at most step 0, whose update is not done");
}

TEST_F(ParameterShardTest, DeclaringTheSameAgainIsHarmless) {
  Declare(false, 1);
  ASSERT_TRUE(Push(0, 1, 0, {1, 2, 3}).ok());
  Declare(false, 1);
  EXPECT_EQ(Values(), (std::vector<float>{-1, -2, -3}));
}

TEST_F(ParameterShardTest, ConcurrentWorkersLoseNoGradient) {
  ASSERT_TRUE(shard_.Declare(Job(false, 4), {Tensor(1, "w", 3)}).ok());
  std::vector<std::thread> workers;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    workers.emplace_back([this, rank] {
      for (uint64_t sequence = 1; sequence <= 500; ++sequence) {
        EXPECT_TRUE(Push(rank, sequence, sequence - 1, {1, 1, 1}).ok());
        EXPECT_TRUE(Push(rank, sequence, sequence - 1, {1, 1, 1})->duplicate);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(Values(), (std::vector<float>{-2000, -2000, -2000}));
}

}  // namespace
}  // namespace ballast
