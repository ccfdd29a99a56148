// SPDX-License-Identifier: Apache-2.0
#include "server/optimizers/square_sum.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(SquareSumTest, IsTheEuclideanNorm) {
  SquareSum sum(InstructionSet::kPortable);
  EXPECT_EQ(sum.Norm(), 0);
  sum.Add(std::vector<float>{3, 0, -4});
  EXPECT_EQ(sum.Norm(), 5);
  sum.Add(std::vector<float>(36, 2));
  EXPECT_EQ(sum.Norm(), 13);
}

TEST(SquareSumTest, DoesNotOverflow) {
  SquareSum sum(InstructionSet::kPortable);
  sum.Add(std::vector<float>(4, 3e38f));
  EXPECT_NEAR(sum.Norm(), 6e38, 1e32);
}

TEST(SquareSumTest, HasTheSameBitsForAnyCutAndInstructionSet) {
  std::vector<float> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(i + 1.0f);
  SquareSum want(InstructionSet::kPortable);
  want.Add(values);
  for (InstructionSet set : AvailableInstructionSets()) {
    for (size_t size : {1u, 7u, 16u, 100u, 333u, 1000u}) {
      SquareSum sum(set);
      for (size_t first = 0; first < values.size(); first += size) {
        sum.Add(absl::MakeConstSpan(values).subspan(first, size));
      }
      EXPECT_EQ(sum.Norm(), want.Norm()) << size << " elements a block, set " << static_cast<int>(set);
    }
  }
}

}  // namespace
}  // namespace ballast
