// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/progress_tracker.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

namespace ballast {
namespace {

class ProgressTrackerTest : public testing::Test {
 protected:
  // `text` is a WorkerProgress.
  void Report(uint32_t worker, double seconds, const char* text, uint64_t incarnation = 1) {
    v1::WorkerProgress progress;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &progress));
    tracker_.Report(worker, incarnation, progress, seconds);
  }
  v1::JobProgress Progress() const {
    v1::JobProgress progress;
    tracker_.Fill(progress);
    return progress;
  }

  ProgressTracker tracker_;
};

TEST_F(ProgressTrackerTest, ALineIsTheWorkOfAllWorkersBetweenTwoReportsOfWorker0) {
  Report(1, 1, "work { examples: 30 loss_sum: 60 seconds: 1 wait_seconds: 1 max_staleness: 7 }");
  Report(0, 2, "work { examples: 10 loss_sum: 20 seconds: 3 }");
  Report(1, 3,
         "work { examples: 30 loss_sum: 15 seconds: 2 wait_seconds: 1 pushes: 4 staleness_sum: 6 max_staleness: 2 }");
  EXPECT_EQ(Progress().train_loss(), 2) << "the line goes on";
  Report(0, 6, "work { examples: 10 loss_sum: 5 seconds: 6 wait_seconds: 1 }");
  const v1::JobProgress progress = Progress();
  EXPECT_EQ(progress.lines(), 2);
  EXPECT_EQ(progress.line().examples(), 40);
  EXPECT_EQ(progress.line().max_staleness(), 2);
  EXPECT_EQ(progress.line_seconds(), 4);
  EXPECT_EQ(progress.train_loss(), 0.5);
  EXPECT_EQ(progress.samples_per_second(), 10);
  EXPECT_EQ(progress.wait_share(), 0.25);
  EXPECT_EQ(progress.total().examples(), 80);
  EXPECT_EQ(progress.total().wait_seconds(), 3);
  EXPECT_EQ(progress.max_staleness(), 7);
}

TEST_F(ProgressTrackerTest, TheEndOfALeaseIsNotTheEndOfALine) {
  Report(0, 1, "line_continues: true work { examples: 10 loss_sum: 20 seconds: 1 }");
  EXPECT_EQ(Progress().lines(), 0);
  EXPECT_EQ(Progress().examples(), 10);
}

TEST_F(ProgressTrackerTest, AReportWithoutExamplesKeepsTheNewestLine) {
  Report(0, 1, "work { examples: 10 loss_sum: 20 seconds: 1 }");
  Report(0, 2, "work { seconds: 1 wait_seconds: 1 }");
  EXPECT_EQ(Progress().lines(), 1);
  EXPECT_EQ(Progress().train_loss(), 2);
  EXPECT_EQ(Progress().total().wait_seconds(), 1);
}

TEST_F(ProgressTrackerTest, WithoutWorker0EveryReportEndsALine) {
  Report(0, 1, "work { examples: 10 loss_sum: 20 seconds: 1 }");
  tracker_.Lose(0);
  Report(1, 3, "work { examples: 10 loss_sum: 10 seconds: 1 }");
  EXPECT_EQ(Progress().train_loss(), 1);
  Report(0, 4, "line_continues: true work { examples: 1 loss_sum: 9 seconds: 1 }", /*incarnation=*/2);
  Report(1, 5, "work { examples: 10 loss_sum: 90 seconds: 1 }");
  EXPECT_EQ(Progress().lines(), 2) << "worker 0 is back";
}

TEST_F(ProgressTrackerTest, ARetryCountsOnce) {
  for (int attempt = 0; attempt < 2; ++attempt) Report(0, 1, "work { wait_seconds: 1 seconds: 2 bytes_sent: 100 }");
  EXPECT_EQ(Progress().total().bytes_sent(), 100);
}

TEST_F(ProgressTrackerTest, TotalsGoOnWhenProcessesStartOver) {
  Report(0, 2, "step: 5 epoch: 1 work { examples: 10 loss_sum: 20 seconds: 1 steps: 5 bytes_sent: 1000 skipped: 1 }");
  Report(1, 3, "epoch: 1 learning_rate: 0.5 work { examples: 10 loss_sum: 40 seconds: 1 steps: 5 bytes_sent: 1000 }");
  const internal::v1::ProgressTrackerState state = tracker_.Export();
  EXPECT_EQ(state.epoch(), 1);
  tracker_ = ProgressTracker();
  tracker_.Restore(state);
  Report(0, 4, "step: 7 epoch: 1 work { examples: 10 loss_sum: 30 seconds: 1 steps: 2 bytes_sent: 300 }",
         /*incarnation=*/2);
  const v1::JobProgress progress = Progress();
  EXPECT_EQ(progress.total().bytes_sent(), 2300);
  EXPECT_EQ(progress.total().steps(), 12);
  EXPECT_EQ(progress.total().skipped(), 1);
  EXPECT_EQ(progress.lines(), 2);
  EXPECT_EQ(progress.line().examples(), 20) << "the line began before the restart";
  EXPECT_EQ(progress.line_seconds(), 2);
  EXPECT_EQ(progress.epoch_train_loss(), 3);
  EXPECT_EQ(progress.learning_rate(), 0.5);
}

TEST_F(ProgressTrackerTest, AnEpochsLossIsTheMeanOverItsExamplesWheneverTheyAreReported) {
  Report(0, 1, "epoch: 0 work { examples: 10 loss_sum: 40 seconds: 1 }");
  Report(0, 2, "epoch: 1 work { examples: 20 loss_sum: 10 seconds: 1 }");
  Report(1, 3, "epoch: 0 work { examples: 30 loss_sum: 40 seconds: 1 }");
  const v1::JobProgress progress = Progress();
  EXPECT_EQ(progress.epoch(), 1);
  EXPECT_EQ(progress.epoch_train_loss(), 0.5);
  ASSERT_EQ(progress.epoch_work_size(), 2);
  EXPECT_EQ(progress.epoch_work(0).examples(), 40);
  EXPECT_EQ(progress.epoch_work(0).loss_sum(), 80);
}

TEST_F(ProgressTrackerTest, KeepsTheNewest16Epochs) {
  for (uint32_t epoch = 0; epoch < 20; ++epoch) {
    v1::WorkerProgress progress;
    progress.set_epoch(epoch);
    progress.mutable_work()->set_examples(1);
    tracker_.Report(0, 1, progress, epoch);
  }
  EXPECT_EQ(Progress().epoch_work_size(), 16);
  EXPECT_EQ(Progress().epoch_work(0).epoch(), 4);
}

}  // namespace
}  // namespace ballast
