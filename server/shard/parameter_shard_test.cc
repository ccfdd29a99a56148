// SPDX-License-Identifier: Apache-2.0
#include "server/shard/parameter_shard.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/status/error_reason.h"
#include "common/tensors/tensor_spec.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using testing::Test;

// A shard with one weight, whose learning rate falls linearly from 8 to 0 over the job.
class FollowingShard {
 public:
  explicit FollowingShard(const v1::ConsistencyPolicy& policy, uint32_t workers = 3) {
    OwnedTensor tensor;
    tensor.spec.set_id(1);
    tensor.spec.set_name("w");
    tensor.spec.add_shape(1);
    tensor.spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(8);
    tensor.spec.mutable_optimizer()->mutable_schedule()->mutable_polynomial()->set_total(100);
    tensor.spec.mutable_optimizer()->mutable_schedule()->set_total_from_job(true);
    const auto owned = shard.Declare({"job", policy, workers, {}}, {tensor});
    EXPECT_TRUE(owned.ok()) << owned.status();
  }

  absl::StatusOr<PushOutcome> Push(uint32_t worker, uint64_t step, std::optional<double> position,
                                   uint64_t version = 0) {
    const float one = 1;
    const absl::string_view payload(reinterpret_cast<const char*>(&one), sizeof(one));
    const GradientView view{{1, 0}, version, v1::ENCODING_FP32, {&payload, 1}};
    return shard.Push("job", {worker, 1, ++sequences_[worker], step, 1, position}, {view});
  }

  float weight() { return shard.Pull({1, 0}, std::nullopt)->values.values()[0]; }

  ManualClock clock;
  ParameterShard shard{{.max_state_bytes = 1 << 20}, &clock};

 private:
  std::map<uint32_t, uint64_t> sequences_;
};

v1::ConsistencyPolicy AsyncPolicy() {
  v1::ConsistencyPolicy policy;
  policy.mutable_async();
  return policy;
}

v1::ConsistencyPolicy SyncPolicy(uint32_t quorum) {
  v1::ConsistencyPolicy policy;
  policy.mutable_sync()->set_quorum(quorum);
  return policy;
}

TEST(ScheduleOfAJobTest, TheRateFollowsTheShareOfTheJobDone) {
  FollowingShard job(AsyncPolicy());
  EXPECT_EQ(job.Push(0, 0, 0.25)->learning_rate, 6);
  EXPECT_EQ(job.weight(), -6);
  // Many more updates than planned, all at the same position in the job.
  for (uint64_t step = 1; step < 300; ++step) EXPECT_EQ(job.Push(1, step, 0.5)->learning_rate, 4);
  EXPECT_EQ(job.Push(2, 0, 1.0)->learning_rate, 0);
}

TEST(ScheduleOfAJobTest, ALateWorkerDoesNotTakeTheRateBack) {
  FollowingShard job(AsyncPolicy());
  EXPECT_EQ(job.Push(0, 0, 0.5)->learning_rate, 4);
  EXPECT_EQ(job.Push(1, 0, 0.125)->learning_rate, 4);
  EXPECT_EQ(job.Push(1, 1, std::nullopt)->learning_rate, 4);
  EXPECT_EQ(job.Push(1, 2, 0.75)->learning_rate, 2);
}

TEST(ScheduleOfAJobTest, PushesWithoutAPositionCountUpdates) {
  FollowingShard job(AsyncPolicy());
  for (uint64_t step = 0; step < 25; ++step) ASSERT_TRUE(job.Push(0, step, std::nullopt).ok());
  EXPECT_EQ(job.Push(0, 25, std::nullopt)->learning_rate, 6);
}

TEST(ScheduleOfAJobTest, InSyncTheOrderOfArrivalDoesNotMatter) {
  // All ranks of a step report the same position, except one that is late with its data.
  const double positions[] = {0.5, 0.25, 0.5};
  std::vector<uint32_t> order = {0, 1, 2};
  do {
    FollowingShard job(SyncPolicy(0));
    for (uint32_t worker : order) ASSERT_TRUE(job.Push(worker, 0, positions[worker]).ok());
    EXPECT_EQ(job.weight(), -4) << order[0] << order[1] << order[2];
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(ScheduleOfAJobTest, APushThatIsDroppedDoesNotCount) {
  FollowingShard job(SyncPolicy(2));
  ASSERT_TRUE(job.Push(0, 0, 0.25).ok());
  ASSERT_TRUE(job.Push(1, 0, 0.25).ok());
  EXPECT_EQ(job.weight(), -6);
  EXPECT_EQ(job.Push(2, 0, 0.9)->dropped, 1);
  ASSERT_TRUE(job.Push(0, 1, 0.25, 1).ok());
  ASSERT_TRUE(job.Push(1, 1, 0.25, 1).ok());
  EXPECT_EQ(job.weight(), -12);
}

TEST(ScheduleOfAJobTest, RefusesAPositionThatIsNoShare) {
  FollowingShard job(AsyncPolicy());
  for (double position : {-0.1, 1.1, std::nan(""), double{INFINITY}}) {
    const absl::Status status = job.Push(0, 0, position).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << position;
    EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_INVALID_REQUEST);
  }
  EXPECT_EQ(job.shard.status().updates, 0);
}

TEST(ScheduleOfAJobTest, ThePositionIsPartOfWhatIsCaptured) {
  FollowingShard job(AsyncPolicy());
  ASSERT_TRUE(job.Push(0, 0, 0.5).ok());
  ParameterShard restored({.max_state_bytes = 1 << 20}, &job.clock);
  ASSERT_TRUE(restored.Restore(job.shard.Capture([] {})).ok());
  const float one = 1;
  const absl::string_view payload(reinterpret_cast<const char*>(&one), sizeof(one));
  const GradientView view{{1, 0}, 0, v1::ENCODING_FP32, {&payload, 1}};
  EXPECT_EQ(restored.Push("job", {1, 1, 1, 0, 1, 0.25}, {view})->learning_rate, 4);
}

// A shard with a two-element tensor whose values a client provides, or which starts at zero.
class SetValuesTest : public Test {
 protected:
  void Declare(const v1::ConsistencyPolicy& policy, bool provided = true, const std::string& optimizer = "") {
    OwnedTensor tensor;
    tensor.spec.set_id(1);
    tensor.spec.set_name("w");
    tensor.spec.add_shape(2);
    if (provided) tensor.spec.mutable_initializer()->mutable_provided();
    tensor.spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
    if (optimizer == "ftrl") tensor.spec.mutable_optimizer()->mutable_ftrl()->set_learning_rate(1);
    OwnedTensor other = tensor;
    other.spec.set_id(2);
    other.spec.set_name("b");
    const auto owned = shard_.Declare({"job", policy, 2, {}}, {tensor, other});
    ASSERT_TRUE(owned.ok()) << owned.status();
  }

  static absl::string_view Bytes(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }

  absl::StatusOr<SetOutcome> Set(std::vector<float> w, std::vector<float> b) {
    const absl::string_view of_w = Bytes(w), of_b = Bytes(b);
    return shard_.SetValues("job", {{{1, 0}, v1::ENCODING_FP32, {&of_w, 1}}, {{2, 0}, v1::ENCODING_FP32, {&of_b, 1}}});
  }

  absl::StatusOr<PushOutcome> Push(uint32_t worker, std::vector<float> gradient, uint32_t tensor = 1) {
    const absl::string_view payload = Bytes(gradient);
    const GradientView view{{tensor, 0}, 0, v1::ENCODING_FP32, {&payload, 1}};
    return shard_.Push("job", {worker, 1, ++sequences_[worker], 0, 1}, {view});
  }

  std::vector<float> Values(uint32_t tensor = 1) {
    const absl::StatusOr<PulledValues> snapshot = shard_.Pull({tensor, 0}, std::nullopt);
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    return {snapshot->values.values().begin(), snapshot->values.values().end()};
  }

  // The status with which a pull at step 0 ended; kUnknown while it waits.
  std::shared_ptr<absl::Status> Await() {
    auto ended = std::make_shared<absl::Status>(absl::UnknownError("waits"));
    shard_.AwaitPull("job", {.step = 0}, {{1, 0}}, absl::Seconds(30), /*by_reader=*/false,
                     [ended](absl::Status status) { *ended = status; });
    return ended;
  }

  ManualClock clock_;
  ParameterShard shard_{{.rank = 3, .max_state_bytes = 1 << 20}, &clock_};
  std::map<uint32_t, uint64_t> sequences_;
};

TEST_F(SetValuesTest, PullsOfProvidedValuesWaitForThemAtStepZeroToo) {
  Declare(SyncPolicy(0));
  const auto pull = Await();
  EXPECT_EQ(pull->code(), absl::StatusCode::kUnknown);
  const absl::StatusOr<SetOutcome> set = Set({1, 2}, {3, 4});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->set, 2);
  EXPECT_TRUE(pull->ok());
  EXPECT_TRUE(Await()->ok());
  EXPECT_EQ(Values(1), (std::vector<float>{1, 2}));
  EXPECT_EQ(Values(2), (std::vector<float>{3, 4}));
}

TEST_F(SetValuesTest, AWaitInVainSaysWhatItWasFor) {
  Declare(AsyncPolicy());
  std::promise<absl::Status> ended;
  shard_.AwaitPull("job", {.step = 0}, {{1, 0}}, absl::Seconds(30), /*by_reader=*/false,
                   [&](absl::Status status) { ended.set_value(std::move(status)); });
  clock_.Advance(absl::Seconds(31));
  const absl::Status status = ended.get_future().get();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "shard 3: pull of \"w\" slice 0 at step 0 waits for SetValues to provide the values");
}

TEST_F(SetValuesTest, RefusesAPushBeforeTheValuesAreProvided) {
  Declare(AsyncPolicy());
  const absl::Status status = Push(0, {1, 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_VALUES_MISSING);
  EXPECT_EQ(SubjectOf(status, "tensor"), "w");
  ASSERT_TRUE(Set({1, 2}, {3, 4}).ok());
  ASSERT_TRUE(Push(0, {1, 1}).ok());
  EXPECT_EQ(Values(), (std::vector<float>{0, 1}));
}

TEST_F(SetValuesTest, TheSameAgainIsFineAtAnyTimeAndChangesNothing) {
  Declare(AsyncPolicy());
  ASSERT_TRUE(Set({1, 2}, {3, 4}).ok());
  ASSERT_TRUE(Push(0, {1, 1}).ok());
  const absl::StatusOr<SetOutcome> again = Set({1, 2}, {3, 4});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->set, 0);
  EXPECT_EQ(again->unchanged, 2);
  EXPECT_EQ(Values(), (std::vector<float>{0, 1}));
}

TEST_F(SetValuesTest, RefusesOtherValuesAndThenSetsNothing) {
  Declare(AsyncPolicy(), /*provided=*/false);
  const std::vector<float> w = {1, 2};
  const absl::string_view of_w = Bytes(w);
  ASSERT_TRUE(shard_.SetValues("job", {{{1, 0}, v1::ENCODING_FP32, {&of_w, 1}}}).ok());
  const absl::Status status = Set({1, 3}, {3, 4}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_VALUES_SET);
  EXPECT_EQ(SubjectOf(status, "tensor"), "w");
  EXPECT_EQ(status.message(), "shard 3: \"w\" slice 0: values cannot be set: other values were set before");
  EXPECT_EQ(Values(1), (std::vector<float>{1, 2}));
  EXPECT_EQ(Values(2), (std::vector<float>{0, 0}));
}

TEST_F(SetValuesTest, RefusesValuesOnceAPushHasReachedTheSlice) {
  // Under sync the push waits for the other worker's push, so the slice is still at version 0.
  for (const bool sync : {false, true}) {
    SCOPED_TRACE(sync);
    ParameterShard shard({.rank = 3, .max_state_bytes = 1 << 20}, &clock_);
    OwnedTensor tensor;
    tensor.spec.set_id(1);
    tensor.spec.set_name("w");
    tensor.spec.add_shape(1);
    tensor.spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
    ASSERT_TRUE(shard.Declare({"job", sync ? SyncPolicy(0) : AsyncPolicy(), 2, {}}, {tensor}).ok());
    const std::vector<float> one = {1};
    const absl::string_view payload = Bytes(one);
    ASSERT_TRUE(shard.Push("job", {0, 1, 1, 0, 1}, {{{1, 0}, 0, v1::ENCODING_FP32, {&payload, 1}}}).ok());
    const absl::Status status = shard.SetValues("job", {{{1, 0}, v1::ENCODING_FP32, {&payload, 1}}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_VALUES_SET);
    // A restored shard also knows that a push was taken.
    ParameterShard restored({.rank = 3, .max_state_bytes = 1 << 20}, &clock_);
    ASSERT_TRUE(restored.Restore(shard.Capture([] {})).ok());
    EXPECT_EQ(ReasonOf(restored.SetValues("job", {{{1, 0}, v1::ENCODING_FP32, {&payload, 1}}}).status()),
              v1::ERROR_REASON_VALUES_SET);
  }
}

TEST_F(SetValuesTest, WhatWasSetIsPartOfWhatIsCaptured) {
  Declare(AsyncPolicy());
  ASSERT_TRUE(Set({1, 2}, {3, 4}).ok());
  ParameterShard restored({.rank = 3, .max_state_bytes = 1 << 20}, &clock_);
  ASSERT_TRUE(restored.Restore(shard_.Capture([] {})).ok());
  const std::vector<float> same = {1, 2}, other = {1, 3};
  const absl::string_view of_same = Bytes(same), of_other = Bytes(other);
  EXPECT_EQ(restored.SetValues("job", {{{1, 0}, v1::ENCODING_FP32, {&of_same, 1}}})->unchanged, 1);
  EXPECT_EQ(ReasonOf(restored.SetValues("job", {{{1, 0}, v1::ENCODING_FP32, {&of_other, 1}}}).status()),
            v1::ERROR_REASON_VALUES_SET);
}

TEST_F(SetValuesTest, RefusesWhatIsNoSlicesValues) {
  Declare(AsyncPolicy());
  const std::vector<float> three = {1, 2, 3}, nan = {1, NAN}, two = {1, 2};
  const absl::string_view of_three = Bytes(three), of_nan = Bytes(nan), of_two = Bytes(two);
  const auto refused = [&](absl::Span<const ValueView> values, absl::StatusCode code) {
    const absl::Status status = shard_.SetValues("job", values).status();
    EXPECT_EQ(status.code(), code) << status;
  };
  refused({{{1, 0}, v1::ENCODING_FP32, {&of_three, 1}}}, absl::StatusCode::kInvalidArgument);
  refused({{{1, 0}, v1::ENCODING_FP32, {&of_nan, 1}}}, absl::StatusCode::kInvalidArgument);
  refused({{{1, 0}, v1::ENCODING_SIGN, {&of_two, 1}}}, absl::StatusCode::kInvalidArgument);
  refused({{{1, 1}, v1::ENCODING_FP32, {&of_two, 1}}}, absl::StatusCode::kFailedPrecondition);
  refused({{{7, 0}, v1::ENCODING_FP32, {&of_two, 1}}}, absl::StatusCode::kNotFound);
  refused({{{1, 0}, v1::ENCODING_FP32, {&of_two, 1}}, {{1, 0}, v1::ENCODING_FP32, {&of_two, 1}}},
          absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(shard_.SetValues("other", {{{1, 0}, v1::ENCODING_FP32, {&of_two, 1}}}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Await()->code(), absl::StatusCode::kUnknown);
}

TEST_F(SetValuesTest, FtrlTrainsOnFromThem) {
  Declare(AsyncPolicy(), /*provided=*/true, "ftrl");
  ASSERT_TRUE(Set({5, -5}, {0, 0}).ok());
  ASSERT_TRUE(Push(0, {1, 0}).ok());
  // The step size is 1 / (beta + sqrt(1)).
  EXPECT_EQ(Values(), (std::vector<float>{4.5, -5}));
}

class ParameterShardTest : public Test {
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

  static OwnedTensor Tensor(uint32_t id, const std::string& name, int64_t elements) {
    OwnedTensor tensor;
    tensor.spec.set_id(id);
    tensor.spec.set_name(name);
    tensor.spec.add_shape(elements);
    tensor.spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1.0f);
    return tensor;
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

  static absl::string_view Bytes(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
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
