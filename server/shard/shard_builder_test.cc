// SPDX-License-Identifier: Apache-2.0
#include "server/shard/shard_builder.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/shard/parameter_shard.h"

namespace ballast {
namespace {

constexpr uint64_t kMaxBytes = 1 << 20;

OwnedTensor Tensor(uint32_t id, int64_t elements) {
  OwnedTensor tensor;
  tensor.spec.set_id(id);
  tensor.spec.set_name("w" + std::to_string(id));
  tensor.spec.add_shape(elements);
  tensor.spec.mutable_optimizer()->mutable_momentum()->set_learning_rate(1);
  return tensor;
}

// A shard with tensors 1 and 2 and two workers under `sync`, and a copy that a builder makes of it.
class ShardBuilderTest : public testing::Test {
 protected:
  ShardBuilderTest() {
    job_.name = "job";
    job_.policy.mutable_sync()->set_deterministic(true);
    job_.workers = 2;
    EXPECT_TRUE(shard_.Declare(job_, {Tensor(1, 3), Tensor(2, 2)}).ok());
  }

  ShardBuilder Begin() {
    ShardState outline = shard_.CaptureOutline([] {});
    auto builder = copy_.BeginRestore(outline.job, outline.tensors);
    EXPECT_TRUE(builder.ok()) << builder.status();
    return *std::move(builder);
  }
  void Copy(uint32_t tensor, ShardBuilder& builder) {
    for (auto& slice : shard_.CaptureSlices({{tensor, 0}}, [] {})) {
      const absl::Status added = builder.Add(std::move(slice), position_);
      EXPECT_TRUE(added.ok()) << added;
    }
  }
  // Pushes to the shard, and the gradients of the tensors in `to` to the builder.
  void Push(uint32_t worker, uint64_t step, ShardBuilder& builder, const std::vector<uint32_t>& to) {
    const std::vector<float> values = {1, 2, 3};
    const absl::string_view bytes(reinterpret_cast<const char*>(values.data()), 12);
    const absl::string_view of_1 = bytes, of_2 = bytes.substr(4);
    const std::vector<GradientView> gradients = {{{1, 0}, step, v1::ENCODING_FP32, {&of_1, 1}},
                                                 {{2, 0}, step, v1::ENCODING_FP32, {&of_2, 1}}};
    const PushTicket ticket{worker, 1, step + 1, step, 1};
    EXPECT_TRUE(shard_.Push("job", ticket, gradients).ok());
    ++position_;
    std::vector<GradientView> kept;
    for (uint32_t tensor : to) kept.push_back(gradients[tensor - 1]);
    const absl::Status pushed = builder.Push(ticket, kept);
    EXPECT_TRUE(pushed.ok()) << pushed;
  }
  static void ExpectEqual(ParameterShard& a, ParameterShard& b) {
    const ShardState of_a = a.Capture([] {}), of_b = b.Capture([] {});
    ASSERT_EQ(of_a.slices.size(), of_b.slices.size());
    for (size_t i = 0; i < of_a.slices.size(); ++i) {
      EXPECT_EQ(of_a.slices[i].weights.version, of_b.slices[i].weights.version);
      const PolicyState &policy_a = of_a.slices[i].policy, &policy_b = of_b.slices[i].policy;
      EXPECT_EQ(policy_a.fields.SerializeAsString(), policy_b.fields.SerializeAsString());
      EXPECT_EQ(policy_a.sum.values(), policy_b.sum.values());
      EXPECT_EQ(policy_a.held.size(), policy_b.held.size());
      ASSERT_EQ(of_a.slices[i].weights.arrays.size(), of_b.slices[i].weights.arrays.size());
      for (size_t k = 0; k < of_a.slices[i].weights.arrays.size(); ++k) {
        EXPECT_EQ(of_a.slices[i].weights.arrays[k].values(), of_b.slices[i].weights.arrays[k].values());
      }
    }
    ASSERT_EQ(of_a.windows.size(), of_b.windows.size());
    for (size_t i = 0; i < of_a.windows.size(); ++i) {
      EXPECT_EQ(of_a.windows[i].SerializeAsString(), of_b.windows[i].SerializeAsString());
    }
  }
  absl::Status Finish(ShardBuilder builder) {
    absl::StatusOr<BuiltShard> built = std::move(builder).Finish(shard_.CaptureOutline([] {}).windows);
    return built.ok() ? copy_.Adopt(*std::move(built)) : built.status();
  }

  JobConfig job_;
  // Position of the last change that shard_ made.
  uint64_t position_ = 0;
  ParameterShard shard_{{.max_state_bytes = kMaxBytes}, Clock::Real()};
  ParameterShard copy_{{.max_state_bytes = kMaxBytes}, Clock::Real()};
};

TEST_F(ShardBuilderTest, SlicesThatAreCopiedAtDifferentTimesMakeTheSameShard) {
  ShardBuilder builder = Begin();
  Copy(1, builder);
  // One step is half gathered when tensor 2 is copied; the other is gathered afterwards.
  Push(0, 0, builder, {1});
  Copy(2, builder);
  Push(1, 0, builder, {1, 2});
  Push(1, 1, builder, {1, 2});
  EXPECT_TRUE(shard_.Pause("job", 0, 1).ok());
  EXPECT_TRUE(builder.Pause(++position_, 0).ok());
  ASSERT_TRUE(Finish(std::move(builder)).ok());
  EXPECT_EQ(copy_.status().state_bytes, shard_.status().state_bytes);
  ExpectEqual(shard_, copy_);
  // The copy has the push windows: it knows this push.
  const auto again = copy_.Push("job", {1, 1, 2, 1, 1}, {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->duplicate);
}

TEST_F(ShardBuilderTest, TakesTensorsThatAreDeclaredMeanwhile) {
  ShardBuilder builder = Begin();
  Copy(1, builder);
  Copy(2, builder);
  ASSERT_TRUE(shard_.Declare(job_, {Tensor(1, 3), Tensor(3, 5)}).ok());
  ASSERT_TRUE(builder.Declare(shard_.CaptureOutline([] {}).tensors, {}).ok());
  Copy(3, builder);
  ASSERT_TRUE(Finish(std::move(builder)).ok());
  ExpectEqual(shard_, copy_);
}

TEST_F(ShardBuilderTest, ValuesThatAreSetMeanwhileAreSetOnce) {
  ShardBuilder builder = Begin();
  Copy(1, builder);
  const std::vector<float> values = {7, 8, 9};
  const absl::string_view of_1(reinterpret_cast<const char*>(values.data()), 12), of_2 = of_1.substr(4);
  const std::vector<ValueView> views = {{{1, 0}, v1::ENCODING_FP32, {&of_1, 1}},
                                        {{2, 0}, v1::ENCODING_FP32, {&of_2, 1}}};
  ASSERT_TRUE(shard_.SetValues("job", views).ok());
  // The builder does not have tensor 2 yet; the later copy of tensor 2 contains these values.
  ASSERT_EQ(builder.SetValues(++position_, views), absl::OkStatus());
  Copy(2, builder);
  Push(0, 0, builder, {1, 2});
  Push(1, 0, builder, {1, 2});
  ASSERT_TRUE(Finish(std::move(builder)).ok());
  ExpectEqual(shard_, copy_);
  EXPECT_EQ(copy_.SetValues("job", views)->unchanged, 2);
}

TEST_F(ShardBuilderTest, ACaptureIsNotChangedAgainByWhatItHolds) {
  ShardBuilder builder = Begin();
  Copy(1, builder);
  const std::vector<float> values = {7, 8};
  const absl::string_view of_2(reinterpret_cast<const char*>(values.data()), 8);
  const std::vector<ValueView> views = {{{2, 0}, v1::ENCODING_FP32, {&of_2, 1}}};
  ASSERT_TRUE(shard_.SetValues("job", views).ok());
  const uint64_t set_at = ++position_;
  Push(0, 0, builder, {1});
  Push(1, 0, builder, {1});
  // Tensor 2 is captured, with the effect of the values and both pushes, before the builder receives the values.
  Copy(2, builder);
  ASSERT_EQ(builder.SetValues(set_at, views), absl::OkStatus());
  ASSERT_TRUE(Finish(std::move(builder)).ok());
  ExpectEqual(shard_, copy_);
}

TEST_F(ShardBuilderTest, ACaptureInWhichAWorkerIsBackIsNotPausedAgain) {
  ShardBuilder builder = Begin();
  Copy(1, builder);
  ASSERT_TRUE(shard_.Pause("job", 0, 1).ok());
  const uint64_t paused_at = ++position_;
  // The worker's next push ends its pause.
  Push(0, 0, builder, {});
  Copy(2, builder);
  ASSERT_EQ(builder.Pause(paused_at, 0), absl::OkStatus());
  // Tensor 1 gets the push that follows the pause.
  const std::vector<float> gradient = {1, 2, 3};
  const absl::string_view of_1(reinterpret_cast<const char*>(gradient.data()), 12);
  ASSERT_EQ(builder.Push({0, 1, 1, 0, 1}, {{{1, 0}, 0, v1::ENCODING_FP32, {&of_1, 1}}}), absl::OkStatus());
  ASSERT_TRUE(Finish(std::move(builder)).ok());
  ExpectEqual(shard_, copy_);
}

TEST_F(ShardBuilderTest, IsNoShardWhileASliceIsMissing) {
  ShardBuilder builder = Begin();
  Copy(1, builder);
  EXPECT_EQ(Finish(std::move(builder)), absl::InvalidArgumentError("slices: got 1, want 2"));
  EXPECT_EQ(copy_.job_name(), "");
}

TEST_F(ShardBuilderTest, RefusesWhatDoesNotFit) {
  ShardBuilder builder = Begin();
  Copy(1, builder);
  auto slice = shard_.CaptureSlices({{1, 0}}, [] {});
  EXPECT_EQ(builder.Add(slice[0], 0), absl::InvalidArgumentError("\"w1\" slice 0 was added twice"));
  slice[0].key = {2, 0};
  EXPECT_EQ(builder.Add(slice[0], 0), absl::InvalidArgumentError("\"w2\" slice 0: got 3 elements, want 2"));
  slice[0].key = {2, 1};
  EXPECT_EQ(builder.Add(slice[0], 0), absl::InvalidArgumentError("\"w2\" has no slice 1 on this shard"));
  slice[0].key = {9, 0};
  EXPECT_EQ(builder.Add(slice[0], 0), absl::InvalidArgumentError("tensor 9 is not declared"));
  const absl::string_view short_bytes = "1234";
  EXPECT_EQ(builder.Push({0, 1, 1, 0, 1}, {{{1, 0}, 0, v1::ENCODING_FP32, {&short_bytes, 1}}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(builder.Push({0, 1, 1, 0, 1}, {{{2, 0}, 0, v1::ENCODING_FP32, {&short_bytes, 1}}}).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(builder.Push({2, 1, 1, 0, 1}, {}),
            absl::InvalidArgumentError("worker: got rank 2, want below the job's 2 workers"));
  EXPECT_EQ(builder.Pause(1, 2).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ShardBuilderTest, RefusesTermsThatNoJobMayHave) {
  job_.workers = 1u << 30;
  EXPECT_EQ(copy_.BeginRestore(job_, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ballast
