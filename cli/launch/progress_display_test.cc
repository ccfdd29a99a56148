// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/progress_display.h"

#include <cmath>
#include <sstream>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

v1::JobProgress Halfway() {
  v1::JobProgress progress;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "state: JOB_STATE_RUNNING epoch: 1 epochs: 5 step: 940 examples: 120000 total_examples: 300000 "
      "train_loss: 0.4121 samples_per_second: 21400",
      &progress));
  return progress;
}

class ProgressDisplayTest : public ::testing::Test {
 protected:
  std::ostringstream out_;
  ManualClock clock_;
};

TEST_F(ProgressDisplayTest, PrintsAPlainLineEveryThreeSecondsElsewhere) {
  ProgressDisplay display({.examples_per_step = 128}, &out_, &clock_);
  display.Update(Halfway());
  clock_.Advance(absl::Seconds(2));
  display.Update(Halfway());
  EXPECT_EQ(out_.str(), "epoch 2/5  step 940/2345  loss 0.412  21,400 samples/s  eta 0:09\n");
  clock_.Advance(absl::Seconds(1));
  display.Update(Halfway());
  EXPECT_EQ(out_.str().size(), 2 * (out_.str().find('\n') + 1));
}

TEST_F(ProgressDisplayTest, PrintsEachEvaluationOnce) {
  ProgressDisplay display({}, &out_, &clock_);
  v1::JobProgress progress = Halfway();
  progress.mutable_last_evaluation()->set_epoch(1);
  progress.mutable_last_evaluation()->set_step(469);
  progress.mutable_last_evaluation()->set_loss(0.3712);
  progress.mutable_last_evaluation()->set_accuracy(0.8713);
  display.Update(progress);
  display.Update(progress);
  EXPECT_EQ(out_.str(),
            "epoch 1/5 done  step 469  test loss 0.3712  test accuracy 0.8713\n"
            "epoch 2/5  step 940  loss 0.412  test 0.871  21,400 samples/s  eta 0:09\n");
}

TEST_F(ProgressDisplayTest, DrawsOneLineInPlace) {
  ProgressDisplay display({.in_place = true, .width = [] { return 100; }}, &out_, &clock_);
  display.Update(Halfway());
  EXPECT_EQ(out_.str(),
            "\r\x1b[K[############...................]  40%  "
            "epoch 2/5  step 940  loss 0.412  21,400 samples/s  eta 0:09");
}

TEST_F(ProgressDisplayTest, NeverFillsTheTerminalsLastColumn) {
  for (int width : {1, 2, 10, 40, 59, 60, 70, 80, 100, 200}) {
    out_.str("");
    ProgressDisplay display({.in_place = true, .width = [=] { return width; }}, &out_, &clock_);
    display.Update(Halfway());
    EXPECT_LE(out_.str().size() - 4, std::max(width - 1, 1)) << width;
  }
}

TEST_F(ProgressDisplayTest, TakesTheBarAwayForOtherLines) {
  ProgressDisplay display({.in_place = true, .width = [] { return 20; }}, &out_, &clock_);
  display.Update(Halfway());
  out_.str("");
  display.PrintLine("hello");
  EXPECT_EQ(out_.str(), "\r\x1b[Khello\n\r\x1b[Kepoch 2/5  step 940");
  out_.str("");
  display.Finish();
  display.Update(Halfway());
  display.PrintLine("bye");
  EXPECT_EQ(out_.str(), "\r\x1b[Kbye\n");
}

TEST_F(ProgressDisplayTest, SaysThatItStartsUntilAllAreThere) {
  ProgressDisplay display({}, &out_, &clock_);
  v1::JobProgress progress;
  progress.set_state(v1::JOB_STATE_GATHERING);
  display.Update(progress);
  EXPECT_EQ(out_.str(), "starting\n");
}

TEST_F(ProgressDisplayTest, FormatsTimesAndNumbers) {
  EXPECT_EQ(FormatClock(absl::Seconds(13.2)), "0:14");
  EXPECT_EQ(FormatClock(absl::Seconds(3725)), "1:02:05");
  EXPECT_EQ(FormatClock(absl::InfiniteDuration()), "-:--");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatCount(NAN), "-");
}

}  // namespace
}  // namespace ballast
