// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/stay_forecast.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(StayForecastTest, AClientStaysAheadUntilItsGradientsNoLongerWait) {
  StayForecast forecast;
  EXPECT_EQ(forecast.next(), BufferPool::Stay::kShort);
  forecast.Took({.buffered = 3});
  EXPECT_EQ(forecast.next(), BufferPool::Stay::kLong);
  forecast.Took({.applied = 1, .buffered = 2});
  EXPECT_EQ(forecast.next(), BufferPool::Stay::kLong);
  forecast.Took({.applied = 2, .buffered = 1});
  EXPECT_EQ(forecast.next(), BufferPool::Stay::kShort);
  forecast.Took({.buffered = 3});
  forecast.Took({.dropped = 3});
  EXPECT_EQ(forecast.next(), BufferPool::Stay::kShort);
}

}  // namespace
}  // namespace ballast
