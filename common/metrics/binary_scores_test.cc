// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/binary_scores.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace ballast {
namespace {

using Scores = std::vector<BinaryScore>;

TEST(BinaryScoresTest, AucIsTheShareOfPairsInOrder) {
  // Pairs of a 1 with a 0: (3, 2) and (3, 1) are in order, (1, 1) is equal, and (1, 2) is not in order.
  EXPECT_DOUBLE_EQ(AreaUnderCurve(Scores{{3, true}, {1, false}, {2, false}, {1, true}}), 2.5 / 4);
  EXPECT_DOUBLE_EQ(AreaUnderCurve(Scores{{-1, false}, {2, true}}), 1);
  EXPECT_DOUBLE_EQ(AreaUnderCurve(Scores{{-1, true}, {2, false}}), 0);
}

TEST(BinaryScoresTest, AucEqualsACountOfAllPairs) {
  std::mt19937 random(1);
  Scores scores;
  // Few values, so that many are equal.
  for (int i = 0; i < 300; ++i) scores.push_back({static_cast<double>(random() % 20), random() % 3 == 0});
  double in_order = 0, pairs = 0;
  for (const BinaryScore& one : scores) {
    for (const BinaryScore& zero : scores) {
      if (!one.label || zero.label) continue;
      ++pairs;
      in_order += one.logit > zero.logit ? 1 : one.logit == zero.logit ? 0.5 : 0;
    }
  }
  EXPECT_NEAR(AreaUnderCurve(scores), in_order / pairs, 1e-12);
}

TEST(BinaryScoresTest, AucOfOneLabelIsThatOfChance) {
  EXPECT_EQ(AreaUnderCurve(Scores{}), 0.5);
  EXPECT_EQ(AreaUnderCurve(Scores{{1, true}, {2, true}}), 0.5);
}

TEST(BinaryScoresTest, AucOfADivergedModelIsNaN) {
  EXPECT_TRUE(std::isnan(AreaUnderCurve(Scores{{NAN, true}, {1, false}})));
  EXPECT_EQ(AreaUnderCurve(Scores{{INFINITY, true}, {-INFINITY, false}}), 1);
}

TEST(BinaryScoresTest, LogLossIsTheMeanNegativeLogLikelihood) {
  const double third = std::log(0.5);  // The logit of 1/3.
  EXPECT_NEAR(LogLoss(Scores{{third, true}, {third, false}}), (std::log(3.0) + std::log(1.5)) / 2, 1e-12);
  EXPECT_NEAR(LogLoss(Scores{{-2000, true}}), 2000, 1e-9) << "overflows nowhere";
  EXPECT_EQ(LogLoss(Scores{}), 0);
}

TEST(BinaryScoresTest, CalibrationComparesThePredictedWithTheFoundOnes) {
  EXPECT_DOUBLE_EQ(Calibration(Scores{{0, true}, {0, false}, {0, false}, {0, false}}), 2);
  EXPECT_TRUE(std::isinf(Calibration(Scores{{0, false}})));
}

}  // namespace
}  // namespace ballast
