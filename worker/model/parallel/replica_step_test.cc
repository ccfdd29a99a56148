// SPDX-License-Identifier: Apache-2.0
#include "worker/model/parallel/replica_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;

// Records its calls; fails the call that `refused` names.
class NotedHooks : public StepHooks {
 public:
  absl::Status BeforeForward(size_t group) override { return Note(absl::StrCat("forward ", group)); }
  absl::Status AfterForward(const BatchResult& result) override {
    return Note(absl::StrCat("loss ", result.loss_sum, " of ", result.examples));
  }
  absl::Status GradientReady(size_t group) override { return Note(absl::StrCat("gradient ", group)); }

  absl::Status Note(const std::string& call) {
    calls.push_back(call);
    return call == refused ? absl::UnavailableError("refused " + call) : absl::OkStatus();
  }

  std::vector<std::string> calls;
  std::string refused;
};

// Runs a replica's step over two groups.
absl::Status RunStep(StepHooks& hooks, const BatchResult& result) {
  for (const size_t group : {0, 1}) {
    if (absl::Status status = hooks.BeforeForward(group); !status.ok()) return status;
  }
  if (absl::Status status = hooks.AfterForward(result); !status.ok()) return status;
  for (const size_t group : {1, 0}) {
    if (absl::Status status = hooks.GradientReady(group); !status.ok()) return status;
  }
  return absl::OkStatus();
}

class ReplicaStepTest : public ::testing::Test {
 protected:
  // Runs both replicas to the end of the step.
  void RunBoth() {
    DeviceThread follower;
    follower.Start([&] { followed_ = RunStep(step_.hooks(1), {.loss_sum = 2, .examples = 3}); });
    led_ = RunStep(step_.hooks(0), {.loss_sum = 1, .examples = 4});
    if (!led_.ok()) step_.Fail(led_);
    follower.Wait();
  }

  NotedHooks hooks_;
  absl::Status led_;
  absl::Status followed_;
  ReplicaStep step_{2, &hooks_, [this](size_t group) { return hooks_.Note(absl::StrCat("sum ", group)); }};
};

TEST_F(ReplicaStepTest, HooksAreCalledOnceForAll) {
  RunBoth();
  EXPECT_EQ(followed_, absl::OkStatus());
  EXPECT_EQ(led_, absl::OkStatus());
  EXPECT_EQ(step_.status(), absl::OkStatus());
  EXPECT_THAT(hooks_.calls,
              ElementsAre("forward 0", "forward 1", "loss 3 of 7", "sum 1", "gradient 1", "sum 0", "gradient 0"));
}

TEST_F(ReplicaStepTest, GradientsAreSummedWhenTheLastReplicaHasThem) {
  DeviceThread leader;
  leader.Start([&] { led_ = RunStep(step_.hooks(0), {}); });
  StepHooks& follower = step_.hooks(1);
  ASSERT_TRUE(follower.BeforeForward(1).ok());
  ASSERT_TRUE(follower.AfterForward({}).ok());
  ASSERT_TRUE(follower.GradientReady(1).ok());
  ASSERT_TRUE(follower.GradientReady(0).ok());
  leader.Wait();
  EXPECT_EQ(led_, absl::OkStatus());
}

class ReplicaStepFailureTest : public ReplicaStepTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(ReplicaStepFailureTest, AHooksFailureEndsAll) {
  hooks_.refused = GetParam();
  RunBoth();
  EXPECT_EQ(step_.status().message(), absl::StrCat("refused ", GetParam()));
  EXPECT_EQ(led_, step_.status());
  EXPECT_EQ(hooks_.calls.back(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Hooks, ReplicaStepFailureTest,
                         ::testing::Values("forward 0", "forward 1", "loss 3 of 7", "sum 1", "gradient 1", "sum 0",
                                           "gradient 0"));

TEST_F(ReplicaStepTest, AFollowersFailureEndsTheLeadersWait) {
  DeviceThread leader;
  leader.Start([&] { led_ = RunStep(step_.hooks(0), {}); });
  ASSERT_TRUE(step_.hooks(1).BeforeForward(1).ok());
  step_.Fail(absl::InternalError("device 1: lost"));
  leader.Wait();
  EXPECT_EQ(led_.message(), "device 1: lost");
}

TEST_F(ReplicaStepTest, TheFirstFailureStands) {
  step_.Fail(absl::InternalError("first"));
  step_.Fail(absl::InternalError("second"));
  EXPECT_EQ(step_.status().message(), "first");
  EXPECT_EQ(step_.hooks(1).BeforeForward(0).message(), "first");
}

}  // namespace
}  // namespace ballast
