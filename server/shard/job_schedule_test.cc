// SPDX-License-Identifier: Apache-2.0
// Tests that learning rates follow the share of the job that its pushes report.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <vector>

#include "common/status/error_reason.h"
#include "gtest/gtest.h"
#include "server/shard/parameter_shard.h"
#include "server/shard/shard_fixture.h"

namespace ballast {
namespace {

// A shard with one weight, whose learning rate falls linearly from 8 to 0 over the job.
class FollowingShard {
 public:
  explicit FollowingShard(const v1::ConsistencyPolicy& policy, uint32_t workers = 3) {
    OwnedTensor tensor = Tensor(1, "w", 1);
    tensor.spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(8);
    tensor.spec.mutable_optimizer()->mutable_schedule()->mutable_polynomial()->set_total(100);
    tensor.spec.mutable_optimizer()->mutable_schedule()->set_total_from_job(true);
    const auto owned = shard.Declare({"job", policy, workers, {}}, {tensor});
    EXPECT_TRUE(owned.ok()) << owned.status();
  }

  absl::StatusOr<PushOutcome> Push(uint32_t worker, uint64_t step, std::optional<double> position,
                                   uint64_t version = 0) {
    const std::vector<float> one = {1};
    const absl::string_view payload = Bytes(one);
    const GradientView view{{1, 0}, version, v1::ENCODING_FP32, {&payload, 1}};
    return shard.Push("job", {worker, 1, ++sequences_[worker], step, 1, position}, {view});
  }

  float weight() { return shard.Pull({1, 0}, std::nullopt)->values.values()[0]; }

  ManualClock clock;
  ParameterShard shard{{.max_state_bytes = 1 << 20}, &clock};

 private:
  std::map<uint32_t, uint64_t> sequences_;
};

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
  const std::vector<float> one = {1};
  const absl::string_view payload = Bytes(one);
  const GradientView view{{1, 0}, 0, v1::ENCODING_FP32, {&payload, 1}};
  EXPECT_EQ(restored.Push("job", {1, 1, 1, 0, 1, 0.25}, {view})->learning_rate, 4);
}

}  // namespace
}  // namespace ballast
