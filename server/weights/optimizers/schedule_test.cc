// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/schedule.h"

#include <string>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

Schedule Make(const std::string& text, double rate) {
  v1::Schedule config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return Schedule(config, rate);
}

TEST(ScheduleTest, StaysConstantWhereNothingIsSet) {
  for (const char* text : {"", "constant {}"}) {
    EXPECT_EQ(Make(text, 0.5).LearningRate(0), 0.5);
    EXPECT_EQ(Make(text, 0.5).LearningRate(1000000), 0.5);
  }
}

TEST(ScheduleTest, StepsDownEveryFewUpdates) {
  const Schedule schedule = Make("step { every: 10 factor: 0.5 }", 8);
  EXPECT_EQ(schedule.LearningRate(0), 8);
  EXPECT_EQ(schedule.LearningRate(9), 8);
  EXPECT_EQ(schedule.LearningRate(10), 4);
  EXPECT_EQ(schedule.LearningRate(29), 2);
  EXPECT_EQ(schedule.LearningRate(30), 1);
}

TEST(ScheduleTest, DecaysExponentially) {
  const Schedule schedule = Make("exponential { factor: 0.5 }", 8);
  EXPECT_EQ(schedule.LearningRate(0), 8);
  EXPECT_EQ(schedule.LearningRate(1), 4);
  EXPECT_EQ(schedule.LearningRate(5), 0.25);
  EXPECT_EQ(schedule.LearningRate(uint64_t{1} << 40), 0);
}

TEST(ScheduleTest, FallsToZeroAlongAPolynomial) {
  const Schedule line = Make("polynomial { total: 4 }", 8);
  EXPECT_EQ(line.LearningRate(0), 8);
  EXPECT_EQ(line.LearningRate(1), 6);
  EXPECT_EQ(line.LearningRate(4), 0);
  EXPECT_EQ(line.LearningRate(5), 0);
  EXPECT_EQ(Make("polynomial { total: 4 power: 2 }", 8).LearningRate(1), 4.5);
}

TEST(ScheduleTest, FallsAlongACosineAndStaysLow) {
  const Schedule schedule = Make("cosine { total: 60 min_rate_ratio: 0.25 }", 8);
  EXPECT_EQ(schedule.LearningRate(0), 8);
  // 2 + 6 * (1 + cos(pi / 3)) / 2
  EXPECT_NEAR(schedule.LearningRate(20), 6.5, 1e-12);
  EXPECT_NEAR(schedule.LearningRate(30), 5, 1e-12);
  EXPECT_NEAR(schedule.LearningRate(60), 2, 1e-12);
  EXPECT_NEAR(schedule.LearningRate(61), 2, 1e-12);
  EXPECT_NEAR(Make("cosine { total: 60 }", 8).LearningRate(60), 0, 1e-12);
}

TEST(ScheduleTest, GoesUpAndDownInOneCycle) {
  // Peak at 0.25 * 20 - 1 = 4, end at 19.
  const Schedule schedule = Make("one_cycle { total: 20 warmup_fraction: 0.25 }", 100);
  EXPECT_NEAR(schedule.LearningRate(0), 4, 1e-12);
  EXPECT_NEAR(schedule.LearningRate(2), 52, 1e-12);
  EXPECT_NEAR(schedule.LearningRate(4), 100, 1e-12);
  // 0.0004 + 99.9996 * (1 + cos(pi / 3)) / 2
  EXPECT_NEAR(schedule.LearningRate(9), 75.0001, 1e-12);
  EXPECT_NEAR(schedule.LearningRate(19), 0.0004, 1e-12);
  EXPECT_NEAR(schedule.LearningRate(20), 0.0004, 1e-12);
}

TEST(ScheduleTest, OneCycleRisesOverThreeTenthsWhereNoShareIsSet) {
  // Peak at 0.3 * 100 - 1 = 29.
  const Schedule schedule = Make("one_cycle { total: 100 }", 100);
  EXPECT_NEAR(schedule.LearningRate(29), 100, 1e-9);
  EXPECT_LT(schedule.LearningRate(28), 100);
  EXPECT_LT(schedule.LearningRate(30), 100);
}

TEST(ScheduleTest, OneCycleStartsAtThePeakWhereThereIsNoTimeToRise) {
  // Peak at 0.5 * 2 - 1 = 0.
  const Schedule schedule = Make("one_cycle { total: 2 warmup_fraction: 0.5 }", 100);
  EXPECT_NEAR(schedule.LearningRate(0), 100, 1e-12);
  EXPECT_NEAR(schedule.LearningRate(1), 0.0004, 1e-12);
}

TEST(ScheduleTest, WarmsUpInALineWhileTheScheduleGoesOn) {
  const Schedule constant = Make("warmup: 4", 10);
  EXPECT_NEAR(constant.LearningRate(0), 2, 1e-12);
  EXPECT_NEAR(constant.LearningRate(3), 8, 1e-12);
  EXPECT_EQ(constant.LearningRate(4), 10);
  const Schedule both = Make("exponential { factor: 0.5 } warmup: 4", 10);
  EXPECT_NEAR(both.LearningRate(1), 10 * 0.5 * 0.4, 1e-12);
  EXPECT_NEAR(both.LearningRate(4), 10 * 0.0625, 1e-12);
}

TEST(ScheduleTest, ATotalFromTheJobFollowsThePosition) {
  const Schedule line = Make("polynomial { total: 100 } total_from_job: true", 8);
  EXPECT_EQ(line.LearningRate(5, 0.0), 8);
  EXPECT_EQ(line.LearningRate(5, 0.25), 6);
  // The number of updates does not matter.
  EXPECT_EQ(line.LearningRate(500, 0.25), 6);
  EXPECT_EQ(line.LearningRate(500, 1.0), 0);
  const Schedule cosine = Make("cosine { total: 60 } total_from_job: true", 8);
  EXPECT_NEAR(cosine.LearningRate(1000, 0.5), 4, 1e-12);
  const Schedule cycle = Make("one_cycle { total: 100 } total_from_job: true", 8);
  EXPECT_NEAR(cycle.LearningRate(1000, 0.29), 8, 1e-12);
  EXPECT_NEAR(cycle.LearningRate(0, 1.0), 8 / 250000.0, 1e-12);
}

TEST(ScheduleTest, ATotalFromTheJobCountsUpdatesWhereNoPositionIsKnown) {
  EXPECT_EQ(Make("polynomial { total: 100 } total_from_job: true", 8).LearningRate(25), 6);
}

TEST(ScheduleTest, WithTheUpdatesThatWerePlannedThePositionMakesNoDifference) {
  for (const char* kind : {"polynomial { total: 90 power: 3 }", "cosine { total: 90 }", "one_cycle { total: 90 }"}) {
    const Schedule counted = Make(kind, 8);
    const Schedule followed = Make(std::string(kind) + " total_from_job: true", 8);
    for (uint64_t t = 0; t < 90; ++t) EXPECT_NEAR(followed.LearningRate(t, t / 90.0), counted.LearningRate(t), 1e-12);
  }
}

TEST(ScheduleTest, AnExplicitTotalStepsAndTheWarmUpCountUpdates) {
  EXPECT_EQ(Make("polynomial { total: 100 }", 8).LearningRate(25, 0.5), 6);
  EXPECT_EQ(Make("step { every: 10 factor: 0.5 }", 8).LearningRate(10, 0.0), 4);
  EXPECT_EQ(Make("exponential { factor: 0.5 }", 8).LearningRate(1, 0.0), 4);
  const Schedule warm = Make("polynomial { total: 100 } warmup: 3 total_from_job: true", 8);
  EXPECT_EQ(warm.LearningRate(0, 0.5), 1);
  EXPECT_EQ(warm.LearningRate(1, 0.5), 2);
  EXPECT_EQ(warm.LearningRate(3, 0.5), 4);
}

}  // namespace
}  // namespace ballast
