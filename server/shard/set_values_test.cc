// SPDX-License-Identifier: Apache-2.0
// Tests of first values that clients set.
#include <cmath>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/status/error_reason.h"
#include "gtest/gtest.h"
#include "server/shard/parameter_shard.h"
#include "server/shard/shard_fixture.h"

namespace ballast {
namespace {

// A shard with a two-element tensor whose values a client provides, or which starts at zero.
class SetValuesTest : public testing::Test {
 protected:
  void Declare(const v1::ConsistencyPolicy& policy, bool provided = true, const std::string& optimizer = "") {
    OwnedTensor tensor = Tensor(1, "w", 2);
    if (provided) tensor.spec.mutable_initializer()->mutable_provided();
    if (optimizer == "ftrl") tensor.spec.mutable_optimizer()->mutable_ftrl()->set_learning_rate(1);
    OwnedTensor other = tensor;
    other.spec.set_id(2);
    other.spec.set_name("b");
    const auto owned = shard_.Declare({"job", policy, 2, {}}, {tensor, other});
    ASSERT_TRUE(owned.ok()) << owned.status();
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
  shard_.AwaitPull("job", {.step = 0}, {{1, 0}}, absl::Seconds(1), /*by_reader=*/false,
                   [&](absl::Status status) { ended.set_value(std::move(status)); });
  clock_.Advance(absl::Seconds(2));
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
    ASSERT_TRUE(shard.Declare({"job", sync ? SyncPolicy(0) : AsyncPolicy(), 2, {}}, {Tensor(1, "w", 1)}).ok());
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

}  // namespace
}  // namespace ballast
