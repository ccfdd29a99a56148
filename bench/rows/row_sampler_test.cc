// SPDX-License-Identifier: Apache-2.0
#include "bench/rows/row_sampler.h"

#include <algorithm>
#include <numeric>

#include "common/tables/row_hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Lt;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;

TEST(RowSamplerTest, DrawsEveryRowOnceIfAllAreWanted) {
  std::vector<uint64_t> all(50);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_THAT(RowSampler(50, 0, 1).Draw(50), UnorderedElementsAreArray(all));
  EXPECT_THAT(RowSampler(50, 1.05, 1).Draw(50), UnorderedElementsAreArray(all));
}

TEST(RowSamplerTest, DrawsTheSameBatchesFromTheSameSeed) {
  RowSampler one(1000, 1.05, 7), other(1000, 1.05, 7);
  EXPECT_EQ(one.Draw(20), other.Draw(20));
  EXPECT_EQ(one.Draw(20), other.Draw(20));
  EXPECT_NE(one.Draw(20), RowSampler(1000, 1.05, 8).Draw(20));
}

// The first 1,000 of 10^6 rows have 0.001 of the uniform draws and 0.608 of Zipf's: the sum of (1 + k)^-1.05 is 6.422
// over them and 10.557 over all.
TEST(RowSamplerTest, DrawsLowIdsMoreOftenByZipf) {
  const auto first_draws_below_1000 = [](double exponent) {
    int below = 0;
    for (uint64_t seed = 0; seed < 1000; ++seed) below += RowSampler(1'000'000, exponent, seed).Draw(1)[0] < 1000;
    return below;
  };
  EXPECT_NEAR(first_draws_below_1000(1.05), 608, 60);
  EXPECT_LT(first_draws_below_1000(0), 15);
}

TEST(RowSamplerTest, DrawsNoRowBeyondTheTable) {
  const std::vector<uint64_t> ids = RowSampler(100, 1.05, 3).Draw(80);
  EXPECT_THAT(ids, SizeIs(80));
  EXPECT_THAT(ids, Each(Lt(100)));
}

TEST(SortedHashesTest, AscendAndAreThoseOfTheIds) {
  std::vector<uint64_t> want = {RowHash(5, 1), RowHash(6, 1), RowHash(7, 1)};
  std::sort(want.begin(), want.end());
  EXPECT_THAT(SortedHashes({7, 5, 6}), ElementsAre(want[0], want[1], want[2]));
}

}  // namespace
}  // namespace ballast
