// SPDX-License-Identifier: Apache-2.0
#include "worker/training/transfer_pipeline.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kLong = absl::Minutes(1);

class TransferPipelineTest : public ::testing::Test {
 protected:
  // Returns a collect callback that records that it ran.
  TransferPipeline::Collect Note(const std::string& what, TransferPipeline::Pushed pushed = std::nullopt) {
    return [this, what, pushed]() -> absl::StatusOr<TransferPipeline::Pushed> {
      Add(what);
      return pushed;
    };
  }
  void Add(const std::string& what) {
    absl::MutexLock lock(&mutex_);
    notes_.push_back(what);
  }
  TransferPipeline::Deliver Deliver() {
    return [this](size_t group) {
      Add(absl::StrCat("deliver ", group));
      return absl::OkStatus();
    };
  }
  std::vector<std::string> notes() {
    absl::MutexLock lock(&mutex_);
    return notes_;
  }

  absl::Mutex mutex_;
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mutex_);
  ThreadedPipeline pipeline_{3, Deliver()};
};

TEST_F(TransferPipelineTest, GroupIsAtRestAtFirst) {
  EXPECT_TRUE(pipeline_.WaitFor(0, absl::ZeroDuration()));
  EXPECT_EQ(pipeline_.Take(0).value(), std::nullopt);
}

TEST_F(TransferPipelineTest, CollectsInTheOrderInWhichItWasAsked) {
  ASSERT_TRUE(pipeline_.Begin(2, Note("collect 2")).ok());
  ASSERT_TRUE(pipeline_.Begin(0, Note("collect 0")).ok());
  ASSERT_TRUE(pipeline_.Begin(1, Note("collect 1")).ok());
  for (size_t group = 0; group < 3; ++group) EXPECT_TRUE(pipeline_.WaitFor(group, kLong));
  EXPECT_THAT(notes(), ElementsAre("collect 2", "collect 0", "collect 1"));
}

TEST_F(TransferPipelineTest, DeliversWhatItsPushWasAnsweredWith) {
  Promise<PushResult> promise;
  ASSERT_TRUE(pipeline_.Begin(1, Note("collect 1", promise.GetFuture())).ok());
  EXPECT_FALSE(pipeline_.WaitFor(1, absl::Milliseconds(10)));
  promise.Set(PushResult{.bytes_sent = 7});
  ASSERT_TRUE(pipeline_.WaitFor(1, kLong));
  EXPECT_THAT(notes(), ElementsAre("collect 1", "deliver 1"));
  EXPECT_EQ(pipeline_.Take(1).value()->bytes_sent, 7u);
  EXPECT_EQ(pipeline_.Take(1).value(), std::nullopt);
}

TEST_F(TransferPipelineTest, DeliversWhatHasComeThoughAnEarlierPushWaits) {
  Promise<PushResult> first, second;
  ASSERT_TRUE(pipeline_.Begin(2, first.GetFuture()).ok());
  ASSERT_TRUE(pipeline_.Begin(1, second.GetFuture()).ok());
  second.Set(PushResult());
  EXPECT_TRUE(pipeline_.WaitFor(1, kLong));
  EXPECT_FALSE(pipeline_.WaitFor(2, absl::ZeroDuration()));
  first.Set(PushResult());
  EXPECT_TRUE(pipeline_.WaitFor(2, kLong));
}

// A delivery blocks the deliverer until all three responses have arrived.
TEST(GradientCourierOrderTest, OfSeveralAnswersDeliversTheFirstInForwardsOrder) {
  std::vector<size_t> delivered;
  absl::Notification inside, go_on;
  ThreadedPipeline pipeline(4, [&](size_t group) {
    if (delivered.empty()) {
      inside.Notify();
      EXPECT_TRUE(go_on.WaitForNotificationWithTimeout(kLong));
    }
    delivered.push_back(group);
    return absl::OkStatus();
  });
  ASSERT_TRUE(pipeline.Begin(3, MakeReadyFuture<PushResult>(PushResult())).ok());
  ASSERT_TRUE(inside.WaitForNotificationWithTimeout(kLong));
  for (const size_t group : {2, 1, 0}) {
    ASSERT_TRUE(pipeline.Begin(group, MakeReadyFuture<PushResult>(PushResult())).ok());
  }
  go_on.Notify();
  for (size_t group = 0; group < 4; ++group) EXPECT_TRUE(pipeline.WaitFor(group, kLong));
  EXPECT_THAT(delivered, ElementsAre(3, 0, 1, 2));
}

TEST_F(TransferPipelineTest, ErrorEndsEveryWaitAndBeginsNothingMore) {
  Promise<PushResult> unanswered;
  ASSERT_TRUE(pipeline_.Begin(2, unanswered.GetFuture()).ok());
  ASSERT_TRUE(
      pipeline_
          .Begin(1,
                 []() -> absl::StatusOr<TransferPipeline::Pushed> { return absl::UnavailableError("the GPU is lost"); })
          .ok());
  EXPECT_TRUE(pipeline_.WaitFor(2, kLong));
  EXPECT_EQ(pipeline_.Take(2).status(), absl::UnavailableError("the GPU is lost"));
  EXPECT_EQ(pipeline_.Begin(0, Note("collect 0")), absl::UnavailableError("the GPU is lost"));
  EXPECT_THAT(notes(), IsEmpty());
}

TEST_F(TransferPipelineTest, FailedPushIsReportedAndNotDelivered) {
  ASSERT_TRUE(pipeline_.Begin(1, MakeReadyFuture<PushResult>(absl::UnavailableError("shard 0 is gone"))).ok());
  ASSERT_TRUE(pipeline_.WaitFor(1, kLong));
  EXPECT_EQ(pipeline_.Take(1).status(), absl::UnavailableError("shard 0 is gone"));
  EXPECT_THAT(notes(), IsEmpty());
}

TEST_F(TransferPipelineTest, AbandonedGroupsAreAtRestAndErrorsForgotten) {
  Promise<PushResult> unanswered;
  ASSERT_TRUE(pipeline_.Begin(2, unanswered.GetFuture()).ok());
  ASSERT_TRUE(pipeline_.Begin(1, MakeReadyFuture<PushResult>(absl::UnavailableError("shard 0 is gone"))).ok());
  ASSERT_TRUE(pipeline_.WaitFor(1, kLong));
  ASSERT_TRUE(pipeline_.Abandon(kLong).ok());
  EXPECT_TRUE(pipeline_.WaitFor(2, absl::ZeroDuration()));
  unanswered.Set(PushResult());
  ASSERT_TRUE(pipeline_.Begin(0, MakeReadyFuture<PushResult>(PushResult())).ok());
  ASSERT_TRUE(pipeline_.WaitFor(0, kLong));
  EXPECT_TRUE(pipeline_.Take(0).ok());
  EXPECT_THAT(notes(), ElementsAre("deliver 0"));
}

TEST_F(TransferPipelineTest, AbandonWaitsForACopyNoLongerThanAsked) {
  absl::Notification inside, go_on;
  ASSERT_TRUE(pipeline_
                  .Begin(1,
                         [&]() -> absl::StatusOr<TransferPipeline::Pushed> {
                           inside.Notify();
                           go_on.WaitForNotificationWithTimeout(kLong);
                           return std::nullopt;
                         })
                  .ok());
  ASSERT_TRUE(inside.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(pipeline_.Abandon(absl::Milliseconds(10)),
            absl::DeadlineExceededError("timed out after 10ms waiting for a copy to or from the device"));
  go_on.Notify();
  EXPECT_TRUE(pipeline_.Abandon(kLong).ok());
}

TEST_F(TransferPipelineTest, InlinePipelineRunsCallbacksInTheCallsThatNeedThem) {
  InlinePipeline pipeline(3, Deliver());
  Promise<PushResult> promise;
  ASSERT_TRUE(pipeline.Begin(2, Note("collect 2")).ok());
  ASSERT_TRUE(pipeline.Begin(1, Note("collect 1", promise.GetFuture())).ok());
  EXPECT_THAT(notes(), ElementsAre("collect 2", "collect 1"));
  EXPECT_TRUE(pipeline.WaitFor(2, absl::ZeroDuration()));
  EXPECT_EQ(pipeline.Take(2).value(), std::nullopt);
  EXPECT_FALSE(pipeline.WaitFor(1, absl::ZeroDuration()));
  promise.Set(PushResult{.bytes_sent = 7});
  EXPECT_TRUE(pipeline.WaitFor(1, absl::ZeroDuration()));
  EXPECT_EQ(pipeline.Take(1).value()->bytes_sent, 7u);
  EXPECT_THAT(notes(), ElementsAre("collect 2", "collect 1", "deliver 1"));
  EXPECT_EQ(pipeline.Take(1).value(), std::nullopt);
}

TEST_F(TransferPipelineTest, InlinePipelineReturnsErrorsUntilItsTransfersAreAbandoned) {
  InlinePipeline pipeline(3, Deliver());
  const absl::Status lost = absl::UnavailableError("shard 0 is gone");
  EXPECT_EQ(pipeline.Begin(0, [&]() -> absl::StatusOr<TransferPipeline::Pushed> { return lost; }), lost);
  ASSERT_TRUE(pipeline.Begin(1, MakeReadyFuture<PushResult>(lost)).ok());
  EXPECT_EQ(pipeline.Take(1).status(), lost);
  EXPECT_EQ(pipeline.Take(1).status(), lost);
  ASSERT_TRUE(pipeline.Abandon(kLong).ok());
  EXPECT_EQ(pipeline.Take(1).value(), std::nullopt);
  EXPECT_THAT(notes(), IsEmpty());
}

}  // namespace
}  // namespace ballast
