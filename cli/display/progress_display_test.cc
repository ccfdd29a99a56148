// SPDX-License-Identifier: Apache-2.0
#include "cli/display/progress_display.h"

#include <cmath>
#include <filesystem>
#include <sstream>

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::StartsWith;

v1::JobProgress Halfway() {
  v1::JobProgress progress;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "state: JOB_STATE_RUNNING epoch: 1 epochs: 5 step: 940 examples: 120000 total_examples: 300000 "
      "train_loss: 0.4121 samples_per_second: 21400 line { examples: 1280 }",
      &progress));
  return progress;
}

v1::JobProgress Starting() {
  v1::JobProgress progress;
  progress.set_state(v1::JOB_STATE_GATHERING);
  return progress;
}

class ProgressDisplayTest : public ::testing::Test {
 protected:
  std::ostringstream out_;
  ManualClock clock_;
};

TEST_F(ProgressDisplayTest, PrintsAPlainLineEveryThreeSecondsElsewhere) {
  ProgressDisplay display({}, &out_, &clock_);
  display.Update(Halfway());
  clock_.Advance(absl::Seconds(2));
  display.Update(Halfway());
  EXPECT_EQ(out_.str(), "40%  epoch 2/5  eta 0:09  last 1,280 examples: loss 0.4121, 21,400/s\n");
  clock_.Advance(absl::Seconds(1));
  display.Update(Halfway());
  EXPECT_EQ(out_.str().size(), 2 * (out_.str().find('\n') + 1));
}

TEST_F(ProgressDisplayTest, AStreamHasNoEnd) {
  const std::string path = testing::TempDir() + "/progress_display_stream";
  std::filesystem::remove(path);
  ProgressDisplay display({.epochs = 1000000, .endless = true, .metrics = path}, &out_, &clock_);
  MetricsWriter writer = MetricsWriter::Open(path).value();
  ASSERT_TRUE(writer.Write(EpochMetrics{.epoch = 1, .train_loss = 0.5, .samples_per_second = 1000}).ok());
  display.Update(Halfway());
  EXPECT_EQ(out_.str(),
            "epoch 1 done  train loss 0.5  1,000 samples/s\n"
            "epoch 2  120,000 examples  last 1,280 examples: loss 0.4121, 21,400/s\n");
}

TEST_F(ProgressDisplayTest, WithoutALineThereIsNoLossYet) {
  v1::JobProgress progress = Halfway();
  progress.clear_line();
  ProgressDisplay display({}, &out_, &clock_);
  display.Update(progress);
  EXPECT_EQ(out_.str(), "40%  epoch 2/5\n");
}

TEST_F(ProgressDisplayTest, ExamplesThatAreCountedAgainDoNotExceedTheWhole) {
  v1::JobProgress progress = Halfway();
  progress.set_examples(300001);
  ProgressDisplay display({}, &out_, &clock_);
  display.Update(progress);
  EXPECT_THAT(out_.str(), StartsWith("100%  epoch 2/5  eta 0:00  "));
}

TEST_F(ProgressDisplayTest, PrintsEachEpochWithItsEvaluation) {
  const std::string path = testing::TempDir() + "/progress_display_metrics";
  std::filesystem::remove(path);
  ProgressDisplay display({.epochs = 12, .metrics = path}, &out_, &clock_);
  display.Update(Starting());
  MetricsWriter writer = MetricsWriter::Open(path).value();
  ASSERT_TRUE(writer.Write(TestMetrics{.epoch = 1, .loss = 0.3712, .accuracy = 0.8713}).ok());
  display.Update(Starting());
  ASSERT_TRUE(writer.Write(EpochMetrics{.epoch = 1, .train_loss = 0.5, .samples_per_second = 21400}).ok());
  ASSERT_TRUE(writer.Write(TestMetrics{.epoch = 3, .loss = 0.25}).ok());
  ASSERT_TRUE(writer.Write(EpochMetrics{.epoch = 2, .train_loss = 0.25, .samples_per_second = 21000}).ok());
  display.Update(Starting());
  ASSERT_TRUE(writer.Write(EpochMetrics{.epoch = 3, .train_loss = 0.125, .samples_per_second = 20000}).ok());
  display.Finish();
  EXPECT_EQ(out_.str(),
            "starting\n"
            "epoch 1/12 done  train loss 0.5  test loss 0.3712  test accuracy 0.8713  21,400 samples/s\n"
            "epoch 2/12 done  train loss 0.25  21,000 samples/s\n"
            "epoch 3/12 done  train loss 0.125  test loss 0.25  20,000 samples/s\n");
}

TEST_F(ProgressDisplayTest, PrintsTheEvaluationOfAnEpochThatIsOverByItself) {
  const std::string path = testing::TempDir() + "/late.jsonl";
  std::filesystem::remove(path);
  ProgressDisplay display({.metrics = path}, &out_, &clock_);
  MetricsWriter writer = MetricsWriter::Open(path).value();
  ASSERT_TRUE(writer.Write(EpochMetrics{.epoch = 1, .train_loss = 0.5, .samples_per_second = 1000}).ok());
  display.Update(Halfway());
  out_.str("");
  ASSERT_TRUE(writer.Write(TestMetrics{.epoch = 1, .loss = 0.5, .accuracy = 0.75}).ok());
  display.Finish();
  EXPECT_EQ(out_.str(), "epoch 1  test loss 0.5  test accuracy 0.7500\n");
}

TEST_F(ProgressDisplayTest, AProgramsDataHasNoEndUnlessItSaysSo) {
  ProgressDisplay display({}, &out_, &clock_);
  v1::JobProgress progress = Halfway();
  progress.set_epochs(0);
  progress.set_total_examples(0);
  display.Update(progress);
  EXPECT_EQ(out_.str(), "epoch 1  120,000 examples  last 1,280 examples: loss 0.4121, 21,400/s\n");
}

TEST_F(ProgressDisplayTest, AnEpochOfAClickModelHasItsAuc) {
  const std::string path = testing::TempDir() + "/progress_display_clicks";
  std::filesystem::remove(path);
  ProgressDisplay display({.epochs = 1, .metrics = path}, &out_, &clock_);
  MetricsWriter writer = MetricsWriter::Open(path).value();
  ASSERT_TRUE(writer.Write(TestMetrics{.epoch = 1, .loss = 0.5, .accuracy = 0.75, .auc = 0.7843}).ok());
  ASSERT_TRUE(writer.Write(EpochMetrics{.epoch = 1, .train_loss = 0.5, .samples_per_second = 1000}).ok());
  display.Finish();
  EXPECT_EQ(out_.str(),
            "epoch 1/1 done  train loss 0.5  test loss 0.5  test accuracy 0.7500  test AUC 0.7843  1,000 samples/s\n");
}

TEST_F(ProgressDisplayTest, DrawsOneLineInPlace) {
  ProgressDisplay display({.in_place = true, .width = [] { return 100; }}, &out_, &clock_);
  display.Update(Halfway());
  EXPECT_EQ(out_.str(),
            "\r\x1b[K[##########.................]  "
            "40%  epoch 2/5  eta 0:09  last 1,280 examples: loss 0.4121, 21,400/s");
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
  EXPECT_EQ(out_.str(), "\r\x1b[Khello\n\r\x1b[K40%  epoch 2/5  eta");
  out_.str("");
  display.Finish();
  display.Update(Halfway());
  display.PrintLine("bye");
  EXPECT_EQ(out_.str(), "\r\x1b[Kbye\n");
}

TEST_F(ProgressDisplayTest, SaysThatItStartsUntilAllAreThere) {
  ProgressDisplay display({}, &out_, &clock_);
  display.Update(Starting());
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
