// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/progress_display.h"

#include <cmath>
#include <sstream>

#include "gtest/gtest.h"

namespace ballast {
namespace {

v1::JobProgress Halfway() {
  v1::JobProgress progress;
  progress.set_state(v1::JOB_STATE_RUNNING);
  progress.set_epoch(1);
  progress.set_epochs(5);
  progress.set_step(940);
  progress.set_examples(120000);
  progress.set_total_examples(300000);
  progress.set_train_loss(0.4121);
  progress.set_samples_per_second(21400);
  return progress;
}

TEST(ProgressDisplayTest, PrintsAPlainLineEveryThreeSecondsElsewhere) {
  std::ostringstream out;
  ManualClock clock;
  ProgressDisplay display({.examples_per_step = 128}, &out, &clock);
  display.Update(Halfway());
  clock.Advance(absl::Seconds(2));
  display.Update(Halfway());
  EXPECT_EQ(out.str(), "epoch 2/5  step 940/2345  loss 0.412  21,400 samples/s  eta 0:09\n");
  clock.Advance(absl::Seconds(1));
  display.Update(Halfway());
  EXPECT_EQ(out.str().size(), 2 * (out.str().find('\n') + 1));
}

TEST(ProgressDisplayTest, PrintsEachEvaluationOnce) {
  std::ostringstream out;
  ManualClock clock;
  ProgressDisplay display({}, &out, &clock);
  v1::JobProgress progress = Halfway();
  progress.mutable_last_evaluation()->set_epoch(1);
  progress.mutable_last_evaluation()->set_step(469);
  progress.mutable_last_evaluation()->set_loss(0.3712);
  progress.mutable_last_evaluation()->set_accuracy(0.8713);
  display.Update(progress);
  display.Update(progress);
  EXPECT_EQ(out.str(),
            "epoch 1/5 done  step 469  test loss 0.3712  test accuracy 0.8713\n"
            "epoch 2/5  step 940  loss 0.412  test 0.871  21,400 samples/s  eta 0:09\n");
}

TEST(ProgressDisplayTest, DrawsOneLineInPlace) {
  std::ostringstream out;
  ManualClock clock;
  ProgressDisplay display({.in_place = true, .width = [] { return 100; }}, &out, &clock);
  display.Update(Halfway());
  EXPECT_EQ(out.str(),
            "\r\x1b[K[############...................]  40%  "
            "epoch 2/5  step 940  loss 0.412  21,400 samples/s  eta 0:09");
}

TEST(ProgressDisplayTest, NeverFillsTheTerminalsLastColumn) {
  ManualClock clock;
  for (int width : {1, 2, 10, 40, 59, 60, 70, 80, 100, 200}) {
    std::ostringstream out;
    ProgressDisplay display({.in_place = true, .width = [=] { return width; }}, &out, &clock);
    display.Update(Halfway());
    EXPECT_LE(out.str().size() - 4, std::max(width - 1, 1)) << width;
  }
}

TEST(ProgressDisplayTest, TakesTheBarAwayForOtherLines) {
  std::ostringstream out;
  ManualClock clock;
  ProgressDisplay display({.in_place = true, .width = [] { return 20; }}, &out, &clock);
  display.Update(Halfway());
  out.str("");
  display.PrintLine("hello");
  EXPECT_EQ(out.str(), "\r\x1b[Khello\n\r\x1b[Kepoch 2/5  step 940");
  out.str("");
  display.Finish();
  display.Update(Halfway());
  display.PrintLine("bye");
  EXPECT_EQ(out.str(), "\r\x1b[Kbye\n");
}

TEST(ProgressDisplayTest, SaysThatItStartsUntilAllAreThere) {
  std::ostringstream out;
  ManualClock clock;
  ProgressDisplay display({}, &out, &clock);
  v1::JobProgress progress;
  progress.set_state(v1::JOB_STATE_GATHERING);
  display.Update(progress);
  EXPECT_EQ(out.str(), "starting\n");
}

TEST(ProgressDisplayTest, FormatsTimesAndNumbers) {
  EXPECT_EQ(FormatClock(absl::Seconds(13.2)), "0:14");
  EXPECT_EQ(FormatClock(absl::Seconds(3725)), "1:02:05");
  EXPECT_EQ(FormatClock(absl::InfiniteDuration()), "-:--");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatCount(NAN), "-");
}

}  // namespace
}  // namespace ballast
