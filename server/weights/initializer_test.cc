// SPDX-License-Identifier: Apache-2.0
#include "server/weights/initializer.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace ballast {
namespace {

v1::TensorSpec Spec(int64_t rows, int64_t columns) {
  v1::TensorSpec spec;
  spec.set_name("fc1/weight");
  spec.set_seed(1);
  spec.add_shape(rows);
  spec.add_shape(columns);
  return spec;
}

std::vector<float> Values(const v1::TensorSpec& spec, uint64_t offset, size_t n) {
  std::vector<float> values(n, -1.0f);
  Initialize(spec, offset, absl::MakeSpan(values));
  return values;
}

TEST(InitializerTest, GivesTheSameValuesForEveryCut) {
  v1::TensorSpec spec = Spec(10, 10);
  spec.mutable_initializer()->mutable_he_normal();
  const std::vector<float> whole = Values(spec, 0, 100);
  const std::vector<float> tail = Values(spec, 37, 63);
  EXPECT_EQ(std::vector<float>(whole.begin() + 37, whole.end()), tail);
}

TEST(InitializerTest, HeNormalHasVarianceTwoOverFanIn) {
  v1::TensorSpec spec = Spec(100, 400);
  spec.mutable_initializer()->mutable_he_normal();
  double sum = 0, squares = 0;
  for (float v : Values(spec, 0, 40000)) sum += v, squares += v * v;
  EXPECT_NEAR(sum / 40000, 0.0, 0.002);
  EXPECT_NEAR(squares / 40000, 2.0 / 400, 0.0002);
}

// A filter's weight is used at each pixel of its window: [filters, height, width, channels].
TEST(InitializerTest, FansOfFiltersCountTheWindow) {
  v1::TensorSpec spec = Spec(100, 5);
  spec.add_shape(4);
  spec.add_shape(20);
  spec.mutable_initializer()->mutable_he_normal();
  double squares = 0;
  for (float v : Values(spec, 0, 40000)) squares += v * v;
  EXPECT_NEAR(squares / 40000, 2.0 / 400, 0.0002);
  spec.mutable_initializer()->mutable_glorot_uniform();
  float most = 0;
  for (float v : Values(spec, 0, 40000)) most = std::max(most, std::abs(v));
  EXPECT_LE(most, std::sqrt(6.0 / 2400));
  EXPECT_GT(most, 0.9 * std::sqrt(6.0 / 2400));
}

TEST(InitializerTest, GlorotUniformStaysWithinItsLimit) {
  v1::TensorSpec spec = Spec(20, 40);
  spec.mutable_initializer()->mutable_glorot_uniform();
  float most = 0;
  for (float v : Values(spec, 0, 800)) most = std::max(most, std::abs(v));
  EXPECT_LE(most, std::sqrt(6.0 / 60));
  EXPECT_GT(most, 0.9 * std::sqrt(6.0 / 60));
}

TEST(InitializerTest, DiffersByNameAndSeed) {
  v1::TensorSpec spec = Spec(1, 8);
  spec.mutable_initializer()->mutable_uniform()->set_high(1);
  const std::vector<float> first = Values(spec, 0, 8);
  spec.set_seed(2);
  EXPECT_NE(Values(spec, 0, 8), first);
  spec.set_seed(1);
  spec.set_name("fc2/weight");
  EXPECT_NE(Values(spec, 0, 8), first);
}

TEST(InitializerTest, ConstantAndDefaultZero) {
  v1::TensorSpec spec = Spec(1, 2);
  EXPECT_EQ(Values(spec, 0, 2), (std::vector<float>{0, 0}));
  spec.mutable_initializer()->mutable_constant()->set_value(1.5f);
  EXPECT_EQ(Values(spec, 0, 2), (std::vector<float>{1.5f, 1.5f}));
}

}  // namespace
}  // namespace ballast
