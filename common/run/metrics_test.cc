// SPDX-License-Identifier: Apache-2.0
#include "common/run/metrics.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kTest[] = R"({"kind":"test","epoch":1,"step":9,"seconds":2,"loss":0.5})";

TEST(MetricsReaderTest, EmptyTextHoldsNothingAndIsNoError) {
  const Metrics metrics = ParseMetrics("");
  EXPECT_THAT(metrics.train, IsEmpty());
  EXPECT_THAT(metrics.test, IsEmpty());
  EXPECT_FALSE(metrics.cut_off);
}

TEST(MetricsReaderTest, ReadsEveryFieldOfATrainingLine) {
  const Metrics metrics = ParseMetrics(R"({"kind":"train","epoch":1,"step":2,"examples":3,"seconds":4,"loss":5,)"
                                       R"("learning_rate":6,"samples_per_second":7,"staleness":8,"wait_share":9})");
  ASSERT_EQ(metrics.train.size(), 1);
  EXPECT_EQ(metrics.train[0].epoch, 1);
  EXPECT_EQ(metrics.train[0].step, 2);
  EXPECT_EQ(metrics.train[0].examples, 3);
  EXPECT_EQ(metrics.train[0].seconds, 4);
  EXPECT_EQ(metrics.train[0].loss, 5);
  EXPECT_EQ(metrics.train[0].learning_rate, 6);
  EXPECT_EQ(metrics.train[0].samples_per_second, 7);
  EXPECT_EQ(metrics.train[0].staleness, 8);
  EXPECT_EQ(metrics.train[0].wait_share, 9);
  EXPECT_EQ(metrics.train[0].bytes_sent, 0) << "an earlier release did not write it";
  EXPECT_EQ(metrics.train[0].over_examples, 0);
}

TEST(MetricsReaderTest, ReadsEveryFieldOfAnEpochsLine) {
  const Metrics metrics = ParseMetrics(R"({"kind":"epoch","epoch":1,"step":2,"examples":3,"seconds":4,)"
                                       R"("epoch_examples":5,"train_loss":6,"samples_per_second":7})");
  ASSERT_EQ(metrics.epochs.size(), 1);
  EXPECT_EQ(metrics.epochs[0].epoch, 1);
  EXPECT_EQ(metrics.epochs[0].step, 2);
  EXPECT_EQ(metrics.epochs[0].examples, 3);
  EXPECT_EQ(metrics.epochs[0].seconds, 4);
  EXPECT_EQ(metrics.epochs[0].epoch_examples, 5);
  EXPECT_EQ(metrics.epochs[0].train_loss, 6);
  EXPECT_EQ(metrics.epochs[0].samples_per_second, 7);
}

TEST(MetricsReaderTest, SkipsALastLineThatACrashCutOff) {
  const Metrics metrics = ParseMetrics(std::string(kTest) + "\n{\"kind\":\"tr");
  EXPECT_EQ(metrics.test.size(), 1);
  EXPECT_TRUE(metrics.cut_off);
  EXPECT_THAT(metrics.malformed_lines, IsEmpty());
}

TEST(MetricsReaderTest, TakesAWholeLastLineThatLacksOnlyItsNewline) {
  const Metrics metrics = ParseMetrics(kTest);
  EXPECT_EQ(metrics.test.size(), 1);
  EXPECT_FALSE(metrics.cut_off);
}

TEST(MetricsReaderTest, NumbersTheMalformedLinesInBetween) {
  const Metrics metrics =
      ParseMetrics(std::string("nonsense\n\n") + kTest + "\n[1]\n{\"kind\":\"test\",\"epoch\":\"one\"}\n");
  EXPECT_EQ(metrics.test.size(), 1);
  EXPECT_THAT(metrics.malformed_lines, ElementsAre(1, 4, 5));
}

TEST(MetricsReaderTest, IgnoresKindsAndKeysOfALaterVersion) {
  const Metrics metrics = ParseMetrics(
      "{\"kind\":\"checkpoint\",\"step\":5}\n"
      "{\"kind\":\"test\",\"epoch\":1,\"step\":9,\"seconds\":2,\"loss\":0.5,\"f1\":1}\n");
  EXPECT_EQ(metrics.test.size(), 1);
  EXPECT_THAT(metrics.malformed_lines, IsEmpty());
}

std::string TrainLine(int epoch, int examples) {
  return absl::StrCat(R"({"kind":"train","epoch":)", epoch, R"(,"step":1,"examples":)", examples,
                      R"(,"seconds":1,"over_examples":10,"loss":1,"learning_rate":1,"samples_per_second":1,)",
                      R"("staleness":0,"wait_share":0})", "\n");
}

std::string EndOfEpoch(int epoch) {
  return absl::StrCat(R"({"kind":"test","epoch":)", epoch, R"(,"step":1,"seconds":1,"loss":1})", "\n",
                      R"({"kind":"epoch","epoch":)", epoch, R"(,"step":1,"examples":20,"seconds":1,)",
                      R"("epoch_examples":20,"train_loss":1,"samples_per_second":1})", "\n");
}

TEST(MetricsReaderTest, LeavesOutWhatAReturnToACheckpointUndid) {
  const Metrics metrics =
      ParseMetrics(absl::StrCat(TrainLine(1, 10), TrainLine(1, 20), EndOfEpoch(1), TrainLine(2, 30), TrainLine(2, 40),
                                EndOfEpoch(2), TrainLine(3, 50), TrainLine(2, 40)));
  std::vector<int64_t> examples;
  for (const TrainMetrics& line : metrics.train) examples.push_back(line.examples);
  EXPECT_THAT(examples, ElementsAre(10, 20, 30, 40));
  ASSERT_EQ(metrics.test.size(), 1);
  EXPECT_EQ(metrics.test[0].epoch, 1);
  ASSERT_EQ(metrics.epochs.size(), 1);
  EXPECT_EQ(metrics.epochs[0].epoch, 1);
}

TEST(MetricsReaderTest, LeavesOutALifeThatTheJobBeganAnew) {
  const Metrics metrics =
      ParseMetrics(absl::StrCat(TrainLine(1, 10), TrainLine(1, 20), EndOfEpoch(1), TrainLine(1, 10)));
  EXPECT_EQ(metrics.train.size(), 1);
  EXPECT_THAT(metrics.test, IsEmpty());
  EXPECT_THAT(metrics.epochs, IsEmpty());
}

TEST(MetricsReaderTest, NullIsNan) {
  const Metrics metrics =
      ParseMetrics("{\"kind\":\"test\",\"epoch\":1,\"step\":9,\"seconds\":2,\"loss\":null,\"accuracy\":null}\n");
  ASSERT_EQ(metrics.test.size(), 1);
  EXPECT_TRUE(std::isnan(metrics.test[0].loss));
  EXPECT_FALSE(metrics.test[0].accuracy.has_value());
  EXPECT_FALSE(metrics.test[0].auc.has_value()) << "an earlier release did not write it";
}

TEST(MetricsReaderTest, MissingFileIsNotFound) {
  EXPECT_EQ(ReadMetrics("/nonexistent/metrics.jsonl").status().code(), absl::StatusCode::kNotFound);
}

class MetricsWriterTest : public testing::Test {
 protected:
  MetricsWriterTest() { unlink(path_.c_str()); }

  // Appends one line to the file.
  template <typename Line>
  void Write(const Line& line) {
    ASSERT_TRUE(MetricsWriter::Open(path_).value().Write(line).ok());
  }

  const std::string path_ = testing::TempDir() + "/metrics_writer_test";
};

TEST_F(MetricsWriterTest, WritesOneLineAtOnceForEachCall) {
  MetricsWriter writer = MetricsWriter::Open(path_).value();
  ASSERT_TRUE(writer
                  .Write(TrainMetrics{.epoch = 1,
                                      .step = 10,
                                      .examples = 640,
                                      .seconds = 0.5,
                                      .over_examples = 320,
                                      .over_seconds = 0.25,
                                      .loss = 2.25,
                                      .learning_rate = 0.125,
                                      .samples_per_second = 1280,
                                      .staleness = 1.5,
                                      .wait_share = 0.25,
                                      .max_staleness = 3,
                                      .bytes_sent = 100.5,
                                      .bytes_received = 400,
                                      .dropped = 2,
                                      .skipped_steps = 1,
                                      .loss_scale = 32768})
                  .ok());
  EXPECT_EQ(
      ReadFile(path_).value(),
      R"({"kind":"train","epoch":1,"step":10,"examples":640,"seconds":0.5,"over_examples":320,"over_seconds":0.25,"loss":2.25,)"
      R"("learning_rate":0.125,"samples_per_second":1280.0,"staleness":1.5,"wait_share":0.25,)"
      R"("max_staleness":3,"bytes_sent":100.5,"bytes_received":400.0,"dropped":2,"skipped_steps":1,"loss_scale":32768.0})"
      "\n");
}

TEST_F(MetricsWriterTest, RegressionHasNoAccuracy) {
  Write(TestMetrics{.epoch = 2, .step = 20, .seconds = 1.5, .loss = 0.5});
  EXPECT_EQ(ReadFile(path_).value(), "{\"kind\":\"test\",\"epoch\":2,\"step\":20,\"seconds\":1.5,\"loss\":0.5}\n");
}

TEST_F(MetricsWriterTest, ClickModelHasItsFigures) {
  Write(TestMetrics{.epoch = 2,
                    .step = 20,
                    .seconds = 1.5,
                    .loss = 0.5,
                    .accuracy = 0.75,
                    .auc = 0.8125,
                    .log_loss = 0.5,
                    .calibration = 1.25});
  EXPECT_EQ(ReadFile(path_).value(),
            R"({"kind":"test","epoch":2,"step":20,"seconds":1.5,"loss":0.5,"accuracy":0.75,"auc":0.8125,)"
            R"("log_loss":0.5,"calibration":1.25})"
            "\n");
  const Metrics metrics = ReadMetrics(path_).value();
  ASSERT_EQ(metrics.test.size(), 1);
  EXPECT_EQ(metrics.test[0].auc, 0.8125);
  EXPECT_EQ(metrics.test[0].log_loss, 0.5);
  EXPECT_EQ(metrics.test[0].calibration, 1.25);
}

TEST_F(MetricsWriterTest, WhatIsWrittenReadsBackAsItWas) {
  const TrainMetrics train = {.step = 3,
                              .loss = 1.0 / 3,
                              .max_staleness = 7,
                              .bytes_received = 0.25,
                              .dropped = 2,
                              .skipped_steps = 4,
                              .loss_scale = 0.5};
  MetricsWriter writer = MetricsWriter::Open(path_).value();
  ASSERT_TRUE(writer.Write(train).ok());
  ASSERT_TRUE(writer.Write(TrainMetrics{.step = 4}).ok());
  ASSERT_TRUE(writer.Write(TestMetrics{.step = 4, .loss = 0.1, .accuracy = 0.8912}).ok());
  ASSERT_TRUE(writer.Write(EpochMetrics{.epoch = 2, .epoch_examples = 7, .train_loss = 1.0 / 3}).ok());
  const Metrics metrics = ReadMetrics(path_).value();
  ASSERT_EQ(metrics.train.size(), 2);
  EXPECT_EQ(metrics.train[0].skipped_steps, 4);
  EXPECT_EQ(metrics.train[0].loss_scale, 0.5);
  EXPECT_EQ(metrics.train[1].loss_scale, std::nullopt);
  EXPECT_EQ(metrics.train[0].max_staleness, 7);
  EXPECT_EQ(metrics.train[0].bytes_received, 0.25);
  EXPECT_EQ(metrics.train[0].dropped, 2);
  EXPECT_EQ(metrics.train[0].loss, 1.0 / 3);
  ASSERT_EQ(metrics.test.size(), 1);
  EXPECT_EQ(metrics.test[0].accuracy, 0.8912);
  ASSERT_EQ(metrics.epochs.size(), 1);
  EXPECT_EQ(metrics.epochs[0].epoch_examples, 7);
  EXPECT_EQ(metrics.epochs[0].train_loss, 1.0 / 3);
}

TEST_F(MetricsWriterTest, NanAndInfinityAreWrittenAsNull) {
  Write(TestMetrics{.loss = std::nan(""), .accuracy = 0.5});
  Write(TrainMetrics{.loss = -std::numeric_limits<double>::infinity()});
  const std::string text = ReadFile(path_).value();
  EXPECT_THAT(text, HasSubstr("\"loss\":null,\"accuracy\":0.5"));
  EXPECT_THAT(text, HasSubstr("\"loss\":null,\"learning_rate\""));
}

TEST_F(MetricsWriterTest, AppendsToAnEarlierFile) {
  Write(TestMetrics{.epoch = 1});
  Write(TestMetrics{.epoch = 2});
  EXPECT_EQ(ReadMetrics(path_).value().test.size(), 2);
}

TEST_F(MetricsWriterTest, ATailReadsEachWholeLineOnce) {
  MetricsTail tail(path_);
  EXPECT_TRUE(tail.Next().test.empty()) << "there is no file yet";
  Write(TestMetrics{.epoch = 1});
  EXPECT_EQ(tail.Next().test.size(), 1);
  EXPECT_TRUE(tail.Next().test.empty());
  const std::string line = std::string(kTest) + "\n";
  std::ofstream(path_, std::ios::app) << line.substr(0, 9) << std::flush;
  const Metrics part = tail.Next();
  EXPECT_TRUE(part.test.empty());
  EXPECT_FALSE(part.cut_off);
  std::ofstream(path_, std::ios::app) << line.substr(9) << line << std::flush;
  EXPECT_EQ(tail.Next().test.size(), 2);
}

TEST_F(MetricsWriterTest, FullDiskIsAnErrorThatNamesTheFile) {
  MetricsWriter writer = MetricsWriter::Open("/dev/full").value();
  const absl::Status status = writer.Write(TrainMetrics{});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("/dev/full"));
}

TEST_F(MetricsWriterTest, MissingFolderIsAnErrorThatNamesTheFile) {
  const absl::Status status = MetricsWriter::Open("/nonexistent/metrics.jsonl").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("/nonexistent/metrics.jsonl"));
}

}  // namespace

}  // namespace ballast
