// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/schedule.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

Schedule Make(const std::string& text, double rate) {
  v1::Schedule config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return Schedule(config, rate);
}

struct Rate {
  uint64_t update;
  double want;
  std::optional<double> position;
};

struct Case {
  Case(std::string name, std::string schedule, double rate, double tolerance, std::vector<Rate> rates)
      : name(std::move(name)), schedule(Make(schedule, rate)), tolerance(tolerance), rates(std::move(rates)) {}

  std::string name;
  Schedule schedule;
  double tolerance;
  std::vector<Rate> rates;
};

TEST(DecimalOfTest, IsTheNumberThatWasWritten) {
  for (double decimal : {0.9, 0.999, 0.99, 0.3, 1e-8, 1e-10, 0.1, 1.0, 0.0}) {
    EXPECT_EQ(DecimalOf(static_cast<float>(decimal)), decimal);
  }
}

TEST(ScheduleTest, EachCaseHasItsRates) {
  const std::vector<Case> cases = {
      Case("StaysConstantWhereNothingIsSet", "", 0.5, 0, {{0, 0.5}, {1000000, 0.5}}),
      Case("StaysConstantWhereNothingIsSet: constant", "constant {}", 0.5, 0, {{0, 0.5}, {1000000, 0.5}}),
      Case("StepsDownEveryFewUpdates", "step { every: 10 factor: 0.5 }", 8, 0,
           {{0, 8}, {9, 8}, {10, 4}, {29, 2}, {30, 1}}),
      Case("DecaysExponentially", "exponential { factor: 0.5 }", 8, 0,
           {{0, 8}, {1, 4}, {5, 0.25}, {uint64_t{1} << 40, 0}}),
      Case("FallsToZeroAlongAPolynomial", "polynomial { total: 4 }", 8, 0, {{0, 8}, {1, 6}, {4, 0}, {5, 0}}),
      Case("FallsToZeroAlongAPolynomial: power 2", "polynomial { total: 4 power: 2 }", 8, 0, {{1, 4.5}}),
      // At 20: 2 + 6 * (1 + cos(pi / 3)) / 2
      Case("FallsAlongACosineAndStaysLow", "cosine { total: 60 min_rate_ratio: 0.25 }", 8, 1e-12,
           {{0, 8}, {20, 6.5}, {30, 5}, {60, 2}, {61, 2}}),
      Case("FallsAlongACosineAndStaysLow: at zero", "cosine { total: 60 }", 8, 1e-12, {{60, 0}}),
      // Peak at 0.25 * 20 - 1 = 4, end at 19. At 9: 0.0004 + 99.9996 * (1 + cos(pi / 3)) / 2
      Case("GoesUpAndDownInOneCycle", "one_cycle { total: 20 warmup_fraction: 0.25 }", 100, 1e-12,
           {{0, 4}, {2, 52}, {4, 100}, {9, 75.0001}, {19, 0.0004}, {20, 0.0004}}),
      // Peak at 0.5 * 2 - 1 = 0.
      Case("OneCycleStartsAtThePeakWhereThereIsNoTimeToRise", "one_cycle { total: 2 warmup_fraction: 0.5 }", 100, 1e-12,
           {{0, 100}, {1, 0.0004}}),
      Case("WarmsUpInALineWhileTheScheduleGoesOn", "warmup: 4", 10, 1e-12, {{0, 2}, {3, 8}}),
      Case("WarmsUpInALineWhileTheScheduleGoesOn: warm", "warmup: 4", 10, 0, {{4, 10}}),
      Case("WarmsUpInALineWhileTheScheduleGoesOn: exponential", "exponential { factor: 0.5 } warmup: 4", 10, 1e-12,
           {{1, 10 * 0.5 * 0.4}, {4, 10 * 0.0625}}),
      // The number of updates does not matter.
      Case("ATotalFromTheJobFollowsThePosition", "polynomial { total: 100 } total_from_job: true", 8, 0,
           {{5, 8, 0.0}, {5, 6, 0.25}, {500, 6, 0.25}, {500, 0, 1.0}}),
      Case("ATotalFromTheJobFollowsThePosition: cosine", "cosine { total: 60 } total_from_job: true", 8, 1e-12,
           {{1000, 4, 0.5}}),
      Case("ATotalFromTheJobFollowsThePosition: one cycle", "one_cycle { total: 100 } total_from_job: true", 8, 1e-12,
           {{1000, 8, 0.29}, {0, 8 / 250000.0, 1.0}}),
      Case("ATotalFromTheJobCountsUpdatesWhereNoPositionIsKnown", "polynomial { total: 100 } total_from_job: true", 8,
           0, {{25, 6}}),
      Case("AnExplicitTotalStepsAndTheWarmUpCountUpdates: total", "polynomial { total: 100 }", 8, 0, {{25, 6, 0.5}}),
      Case("AnExplicitTotalStepsAndTheWarmUpCountUpdates: steps", "step { every: 10 factor: 0.5 }", 8, 0,
           {{10, 4, 0.0}}),
      Case("AnExplicitTotalStepsAndTheWarmUpCountUpdates: exponential", "exponential { factor: 0.5 }", 8, 0,
           {{1, 4, 0.0}}),
      Case("AnExplicitTotalStepsAndTheWarmUpCountUpdates: warm-up",
           "polynomial { total: 100 } warmup: 3 total_from_job: true", 8, 0, {{0, 1, 0.5}, {1, 2, 0.5}, {3, 4, 0.5}}),
  };
  for (const Case& one : cases) {
    for (const Rate& rate : one.rates) {
      EXPECT_NEAR(one.schedule.LearningRate(rate.update, rate.position), rate.want, one.tolerance)
          << one.name << " at " << rate.update;
    }
  }
}

TEST(ScheduleTest, OneCycleRisesOverThreeTenthsWhereNoShareIsSet) {
  // Peak at 0.3 * 100 - 1 = 29.
  const Schedule schedule = Make("one_cycle { total: 100 }", 100);
  EXPECT_NEAR(schedule.LearningRate(29), 100, 1e-9);
  EXPECT_LT(schedule.LearningRate(28), 100);
  EXPECT_LT(schedule.LearningRate(30), 100);
}

TEST(ScheduleTest, WithTheUpdatesThatWerePlannedThePositionMakesNoDifference) {
  for (const char* kind : {"polynomial { total: 90 power: 3 }", "cosine { total: 90 }", "one_cycle { total: 90 }"}) {
    const Schedule counted = Make(kind, 8);
    const Schedule followed = Make(std::string(kind) + " total_from_job: true", 8);
    for (uint64_t t = 0; t < 90; ++t) EXPECT_NEAR(followed.LearningRate(t, t / 90.0), counted.LearningRate(t), 1e-12);
  }
}

}  // namespace

}  // namespace ballast
