// SPDX-License-Identifier: Apache-2.0
#include "server/optimizers/optimizer.h"

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

v1::Optimizer Config(const std::string& text) {
  v1::Optimizer config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return config;
}

void ApplyInPlace(const Optimizer& optimizer, uint64_t update, absl::Span<const float> gradient,
                  absl::Span<float> weights, absl::Span<float> slots) {
  OptimizerBlock block{gradient, weights.data(), weights.data(), {}};
  for (int slot = 0; slot < optimizer.slots(); ++slot) block.slots[slot] = slots.data() + slot * weights.size();
  optimizer.Apply({update, optimizer.LearningRate(update), 1}, block);
}

// One weight's float64 reference: takes update number, gradient, weight and slots.
struct Case {
  std::string name;
  std::string config;
  int slots;
  std::function<void(int t, double g, double& w, std::vector<double>& s)> reference;
};

class OptimizerConformanceTest : public testing::TestWithParam<Case> {};

TEST_P(OptimizerConformanceTest, FollowsTheReferenceOver200Updates) {
  const Case& c = GetParam();
  auto optimizer = MakeOptimizer(Config(c.config));
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  ASSERT_EQ((*optimizer)->slots(), c.slots);
  constexpr int kElements = 37;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> weights(kElements), gradient(kElements), slots(kElements * c.slots, 0.0f);
  for (float& w : weights) w = normal(random);
  std::vector<double> want(weights.begin(), weights.end());
  std::vector<std::vector<double>> want_slots(kElements, std::vector<double>(c.slots, 0.0));
  for (int t = 1; t <= 200; ++t) {
    for (int i = 0; i < kElements; ++i) {
      gradient[i] = normal(random);
      c.reference(t, gradient[i], want[i], want_slots[i]);
    }
    ApplyInPlace(**optimizer, t, gradient, absl::MakeSpan(weights), absl::MakeSpan(slots));
  }
  for (int i = 0; i < kElements; ++i) EXPECT_NEAR(weights[i], want[i], 1e-5 * std::max(1.0, std::abs(want[i]))) << i;
}

TEST_P(OptimizerConformanceTest, GivesTheSameBitsForAnyCut) {
  const Case& c = GetParam();
  auto optimizer = MakeOptimizer(Config(c.config));
  ASSERT_TRUE(optimizer.ok());
  constexpr int kElements = 29;
  std::vector<float> gradient(kElements), whole(kElements, 0.5f), slots(kElements * c.slots, 0.0f);
  for (int i = 0; i < kElements; ++i) gradient[i] = std::sin(i + 1.0f);
  std::vector<float> cut = whole;
  for (int t = 1; t <= 3; ++t) ApplyInPlace(**optimizer, t, gradient, absl::MakeSpan(whole), absl::MakeSpan(slots));
  for (int begin : {0, 13}) {
    const int n = begin == 0 ? 13 : kElements - 13;
    std::vector<float> own_slots(n * c.slots, 0.0f);
    for (int t = 1; t <= 3; ++t) {
      ApplyInPlace(**optimizer, t, absl::MakeSpan(gradient).subspan(begin, n), absl::MakeSpan(cut).subspan(begin, n),
                   absl::MakeSpan(own_slots));
    }
  }
  EXPECT_EQ(whole, cut);
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerConformanceTest,
                         testing::Values(Case{"Sgd", "sgd { learning_rate: 0.1 }", 0,
                                              [](int, double g, double& w, std::vector<double>&) { w -= 0.1f * g; }},
                                         Case{"Momentum", "momentum { learning_rate: 0.1 momentum: 0.9 }", 1,
                                              [](int, double g, double& w, std::vector<double>& s) {
                                                s[0] = 0.9f * s[0] + g;
                                                w -= 0.1f * s[0];
                                              }},
                                         Case{"Adam", "adam { learning_rate: 0.01 }", 2,
                                              [](int t, double g, double& w, std::vector<double>& s) {
                                                s[0] = 0.9 * s[0] + 0.1 * g;
                                                s[1] = 0.999 * s[1] + 0.001 * g * g;
                                                w -= 0.01 * (s[0] / (1 - std::pow(0.9, t))) /
                                                     (std::sqrt(s[1] / (1 - std::pow(0.999, t))) + 1e-8);
                                              }}),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST(OptimizerTest, RefusesAnImpossibleConfiguration) {
  EXPECT_EQ(MakeOptimizer(Config("")).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeOptimizer(Config("adam { learning_rate: 0.1 beta2: 1 }")).status().message(),
            "optimizer beta2: got 1, want a number in [0, 1)");
}

}  // namespace
}  // namespace ballast
