// SPDX-License-Identifier: Apache-2.0
#include "common/data/permutation.h"

#include <gtest/gtest.h>

#include <vector>

namespace ballast {
namespace {

std::vector<uint64_t> Order(uint64_t n, uint64_t seed, uint32_t epoch) {
  const Permutation permutation(n, seed, epoch);
  std::vector<uint64_t> order;
  for (uint64_t i = 0; i < n; ++i) order.push_back(permutation(i));
  return order;
}

// Counts the positions that hold the same element in both orders.
int Agreements(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  int count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] == b[i];
  return count;
}

class PermutationSizeTest : public testing::TestWithParam<uint64_t> {};

TEST_P(PermutationSizeTest, HoldsEveryElementOnce) {
  std::vector<int> seen(GetParam());
  for (const uint64_t element : Order(GetParam(), 7, 3)) {
    ASSERT_LT(element, GetParam());
    ++seen[element];
  }
  EXPECT_EQ(seen, std::vector<int>(GetParam(), 1));
}

INSTANTIATE_TEST_SUITE_P(Sizes, PermutationSizeTest,
                         testing::Values(1, 2, 3, 4, 5, 7, 16, 17, 255, 256, 257, 1023, 4097, 60000, 65537));

TEST(PermutationTest, StaysBelowTheLargestSizes) {
  for (const uint64_t n : {(1ull << 40) + 1, (1ull << 63) + 5, ~0ull}) {
    const Permutation permutation(n, 1, 0);
    EXPECT_LT(permutation(0), n);
    EXPECT_LT(permutation(n - 1), n);
    EXPECT_NE(permutation(0), permutation(n - 1));
  }
}

TEST(PermutationTest, IsTheSameOnEveryMachine) {
  EXPECT_EQ(Order(10, 42, 0), (std::vector<uint64_t>{2, 1, 8, 3, 5, 7, 6, 4, 0, 9}));
}

TEST(PermutationTest, DiffersFromEpochToEpochAndSeedToSeed) {
  // Two independent orders agree in 1 position on average, and in 10 or more positions once in ten million times.
  const std::vector<uint64_t> order = Order(10007, 1, 1);
  EXPECT_LT(Agreements(order, Order(10007, 1, 2)), 10);
  EXPECT_LT(Agreements(order, Order(10007, 2, 1)), 10);
  EXPECT_LT(Agreements(order, Order(10007, 2, 0)), 10);
  EXPECT_LT(Agreements(order, Order(10007, 0, 2)), 10);
}

TEST(PermutationTest, SpreadsEachStretchOfPositionsEvenly) {
  // 100 bins of positions times 100 bins of elements, with 100 expected in each cell. Chi-square with 99 * 99 degrees
  // of freedom has mean 9801 and standard deviation 140; the limit is 6 standard deviations.
  std::vector<int> cells(100 * 100);
  const std::vector<uint64_t> order = Order(1000000, 11, 0);
  for (size_t i = 0; i < order.size(); ++i) ++cells[i / 10000 * 100 + order[i] / 10000];
  double chi_square = 0;
  for (const int count : cells) chi_square += (count - 100.0) * (count - 100.0) / 100;
  EXPECT_NEAR(chi_square, 9801, 6 * 140);
}

TEST(PermutationTest, NeighboursAreUncorrelated) {
  const std::vector<uint64_t> order = Order(60000, 5, 2);
  double sum = 0;
  for (size_t i = 0; i + 1 < order.size(); ++i) {
    sum += (order[i] / 60000.0 - 0.5) * (order[i + 1] / 60000.0 - 0.5);
  }
  // The variance of a uniform number is 1/12; the standard deviation of the estimate is 1 / sqrt(60000) = 0.004.
  EXPECT_NEAR(sum / order.size() * 12, 0, 6 * 0.0041);
}

TEST(HeldOutExamplesTest, HoldsOutTheRoundedShareButNeitherNoneNorAll) {
  const struct {
    uint64_t n;
    double share;
    size_t count;
  } cases[] = {{10, 0, 0}, {10, 0.2, 2}, {30, 0.25, 8}, {10, 0.001, 1}, {10, 0.999, 9}, {2, 0.5, 1}, {1, 0.5, 0}};
  for (const auto& each : cases) EXPECT_EQ(HeldOutExamples(each.n, each.share, 7).size(), each.count) << each.share;
}

TEST(HeldOutExamplesTest, AreTheSameOnEveryMachineAndOthersForAnotherSeed) {
  EXPECT_EQ(HeldOutExamples(20, 0.2, 1), (std::vector<uint64_t>{0, 3, 10, 11}));
  EXPECT_NE(HeldOutExamples(1000, 0.2, 1), HeldOutExamples(1000, 0.2, 2));
}

}  // namespace
}  // namespace ballast
