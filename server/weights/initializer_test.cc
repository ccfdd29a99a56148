// SPDX-License-Identifier: Apache-2.0
#include "server/weights/initializer.h"

#include <cmath>
#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

v1::TensorSpec Spec(const std::vector<int64_t>& shape, const std::string& initializer) {
  v1::TensorSpec spec;
  spec.set_name("fc1/weight");
  spec.set_seed(1);
  spec.mutable_shape()->Add(shape.begin(), shape.end());
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(initializer, spec.mutable_initializer()));
  return spec;
}

std::vector<float> Values(const v1::TensorSpec& spec, uint64_t offset, size_t n) {
  std::vector<float> values(n, -1.0f);
  Initialize(spec, offset, absl::MakeSpan(values));
  return values;
}

TEST(InitializerTest, GivesTheSameValuesForEveryCut) {
  const v1::TensorSpec spec = Spec({10, 10}, "he_normal {}");
  const std::vector<float> whole = Values(spec, 0, 100);
  EXPECT_EQ(std::vector<float>(whole.begin() + 37, whole.end()), Values(spec, 37, 63));
}

// A filter's weight is used at each pixel of its window: [filters, height, width, channels].
const std::vector<int64_t> kFilters = {100, 5, 4, 20};

TEST(InitializerTest, HeNormalHasVarianceTwoOverFanIn) {
  const std::vector<std::pair<std::string, std::vector<int64_t>>> cases = {{"a matrix", {100, 400}},
                                                                           {"FansOfFiltersCountTheWindow", kFilters}};
  for (const auto& [name, shape] : cases) {
    SCOPED_TRACE(name);
    double sum = 0, squares = 0;
    for (float v : Values(Spec(shape, "he_normal {}"), 0, 40000)) sum += v, squares += v * v;
    EXPECT_NEAR(sum / 40000, 0.0, 0.002);
    EXPECT_NEAR(squares / 40000, 2.0 / 400, 0.0002);
  }
}

TEST(InitializerTest, GlorotUniformStaysWithinItsLimit) {
  const auto most = [](const std::vector<int64_t>& shape, size_t elements) {
    float largest = 0;
    for (float v : Values(Spec(shape, "glorot_uniform {}"), 0, elements)) largest = std::max(largest, std::abs(v));
    return largest;
  };
  EXPECT_LE(most({20, 40}, 800), std::sqrt(6.0 / 60));
  EXPECT_GT(most({20, 40}, 800), 0.9 * std::sqrt(6.0 / 60));
  SCOPED_TRACE("FansOfFiltersCountTheWindow");
  EXPECT_LE(most(kFilters, 40000), std::sqrt(6.0 / 2400));
  EXPECT_GT(most(kFilters, 40000), 0.9 * std::sqrt(6.0 / 2400));
}

TEST(InitializerTest, DiffersByNameAndSeed) {
  v1::TensorSpec spec = Spec({1, 8}, "uniform { high: 1 }");
  const std::vector<float> first = Values(spec, 0, 8);
  spec.set_seed(2);
  EXPECT_NE(Values(spec, 0, 8), first);
  spec.set_seed(1);
  spec.set_name("fc2/weight");
  EXPECT_NE(Values(spec, 0, 8), first);
}

TEST(InitializerTest, ConstantAndDefaultZero) {
  EXPECT_EQ(Values(Spec({1, 2}, ""), 0, 2), (std::vector<float>{0, 0}));
  EXPECT_EQ(Values(Spec({1, 2}, "constant { value: 1.5 }"), 0, 2), (std::vector<float>{1.5f, 1.5f}));
}

}  // namespace
}  // namespace ballast
