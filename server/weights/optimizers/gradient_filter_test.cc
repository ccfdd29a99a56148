// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/gradient_filter.h"

#include <cmath>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

// Adds a block that starts at element `first`.
struct AddLoop {
  size_t first;
  absl::Span<const float> values;
  SquareSum* sum;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    const auto take = [&](size_t i, size_t lane) ABSL_ATTRIBUTE_ALWAYS_INLINE { sum->Take(lane, values[i]); };
    SquareSum::ForEachLane(first, values.size(), take);
  }
};

double NormOf(const std::vector<float>& values, InstructionSet set, size_t block) {
  const ScopedInstructionSet scoped(set);
  SquareSum sum;
  for (size_t first = 0; first < values.size(); first += block) {
    RunLoop(AddLoop{first, absl::MakeConstSpan(values).subspan(first, block), &sum});
  }
  return sum.Norm();
}

TEST(SquareSumTest, IsTheEuclideanNorm) {
  EXPECT_EQ(SquareSum().Norm(), 0);
  EXPECT_EQ(NormOf({3, 0, -4}, InstructionSet::kPortable, 3), 5);
  std::vector<float> values(39, 2);
  values[0] = 3;
  values[20] = 0;
  values[38] = -4;
  EXPECT_EQ(NormOf(values, InstructionSet::kPortable, 39), 13);
}

TEST(SquareSumTest, DoesNotOverflow) {
  EXPECT_NEAR(NormOf({3e38f, 3e38f, 3e38f, 3e38f}, InstructionSet::kPortable, 4), 6e38, 1e32);
}

TEST(SquareSumTest, HasTheSameBitsForAnyCutAndInstructionSet) {
  std::vector<float> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(i + 1.0f);
  const double want = NormOf(values, InstructionSet::kPortable, 1000);
  for (InstructionSet set : AvailableInstructionSets()) {
    for (size_t block : {1u, 7u, 16u, 100u, 333u, 1000u}) {
      EXPECT_EQ(NormOf(values, set, block), want) << block << " numbers a block, set " << static_cast<int>(set);
    }
  }
}

}  // namespace

}  // namespace ballast
