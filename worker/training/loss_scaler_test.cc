// SPDX-License-Identifier: Apache-2.0
#include "worker/training/loss_scaler.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

void Repeat(LossScaler& scaler, int times, bool finite) {
  for (int i = 0; i < times; ++i) scaler.Update(finite);
}

TEST(LossScalerTest, BeginsAtTwoToThe16) { EXPECT_EQ(LossScaler().scale(), 65536.0f); }

TEST(LossScalerTest, AnOverflowHalvesIt) {
  LossScaler scaler;
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 32768.0f);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 16384.0f);
}

TEST(LossScalerTest, TwoThousandGoodBatchesDoubleIt) {
  LossScaler scaler;
  Repeat(scaler, 1999, true);
  EXPECT_EQ(scaler.scale(), 65536.0f);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 131072.0f);
  Repeat(scaler, 1999, true);
  EXPECT_EQ(scaler.scale(), 131072.0f);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 262144.0f);
}

TEST(LossScalerTest, AnOverflowBeginsTheCountAnew) {
  LossScaler scaler;
  Repeat(scaler, 1999, true);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 32768.0f);
  Repeat(scaler, 1999, true);
  EXPECT_EQ(scaler.scale(), 32768.0f);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 65536.0f);
}

TEST(LossScalerTest, StaysWithinItsBounds) {
  LossScaler scaler;
  Repeat(scaler, 2000 * 8, true);
  EXPECT_EQ(scaler.scale(), 16777216.0f);
  Repeat(scaler, 2000, true);
  EXPECT_EQ(scaler.scale(), 16777216.0f);
  Repeat(scaler, 38, false);
  EXPECT_EQ(scaler.scale(), 1.0f / 16384);
  Repeat(scaler, 5, false);
  EXPECT_EQ(scaler.scale(), 1.0f / 16384);
}

}  // namespace
}  // namespace ballast
