// SPDX-License-Identifier: Apache-2.0
#include "common/run/metrics_reader.h"

#include <gmock/gmock.h>

#include <cmath>

namespace ballast {
namespace {

using ::testing::ElementsAre;
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

TEST(MetricsReaderTest, NullIsNan) {
  const Metrics metrics =
      ParseMetrics("{\"kind\":\"test\",\"epoch\":1,\"step\":9,\"seconds\":2,\"loss\":null,\"accuracy\":null}\n");
  ASSERT_EQ(metrics.test.size(), 1);
  EXPECT_TRUE(std::isnan(metrics.test[0].loss));
  EXPECT_FALSE(metrics.test[0].accuracy.has_value());
}

TEST(MetricsReaderTest, MissingFileIsNotFound) {
  EXPECT_EQ(ReadMetrics("/nonexistent/metrics.jsonl").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ballast
