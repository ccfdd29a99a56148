// SPDX-License-Identifier: Apache-2.0
#include "bench/rows/rows_in_process.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::FloatNear;

// Under row-wise Adagrad with rate 0.01, equal gradients change a weight by -0.01, then by -0.01 / sqrt(2).
TEST(RowsInProcessTest, PushesAndPullsRowsInAnyOrder) {
  const std::vector<float> gradients(3 * kRowDim, 0.5f);
  const auto created = RowsInProcess::Create(100, gradients);
  ASSERT_TRUE(created.ok()) << created.status();
  RowsInProcess& rows = **created;
  std::vector<float> values(3 * kRowDim);
  ASSERT_TRUE(rows.Pull({99, 3, 3}, absl::MakeSpan(values)).ok());
  EXPECT_THAT(values, Each(FloatNear(-0.01f, 1e-6f)));

  ASSERT_TRUE(rows.Push({7, 99}, absl::MakeConstSpan(gradients).first(2 * kRowDim)).ok());
  ASSERT_TRUE(rows.Pull({99, 3, 7}, absl::MakeSpan(values)).ok());
  const auto row = [&](int i) { return absl::MakeConstSpan(values).subspan(i * kRowDim, kRowDim); };
  EXPECT_THAT(row(0), Each(FloatNear(-0.0170711f, 1e-6f)));
  EXPECT_THAT(row(1), Each(FloatNear(-0.01f, 1e-6f)));
  EXPECT_THAT(row(2), Each(FloatNear(-0.0170711f, 1e-6f)));
}

TEST(RowsInProcessTest, RefusesMemoryOfAnotherSize) {
  const std::vector<float> gradients(kRowDim, 1.0f);
  const auto rows = RowsInProcess::Create(1, gradients);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)->Push({0, 1}, gradients).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ballast
