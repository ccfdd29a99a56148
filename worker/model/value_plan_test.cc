// SPDX-License-Identifier: Apache-2.0
#include "worker/model/value_plan.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Plans a model over 4 x 4 images of 2 channels, on two devices.
ValuePlan Plan(const std::string& layers, bool sparse = false) {
  v1::Model config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "input { height: 4 width: 4 channels: 2 } loss { softmax_cross_entropy {} } " + layers, &config));
  const absl::StatusOr<LayerChain> chain = BuildLayerChain(config, 32, {"0", "1"});
  EXPECT_TRUE(chain.ok()) << chain.status();
  return chain.ok() ? PlanValues(*chain, sparse) : ValuePlan();
}

std::vector<int64_t> Elements(const ValuePlan& plan) {
  std::vector<int64_t> elements;
  for (const ValuePlan::Place& place : plan.places) elements.push_back(place.elements);
  return elements;
}

TEST(ValuePlanTest, EachValueIsKept) {
  const ValuePlan plan =
      Plan("layers { dense { units: 7 } } layers { tanh {} } layers { dense { units: 9 } } layers { gelu {} }");
  EXPECT_THAT(plan.place, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(Elements(plan), ElementsAre(32, 7, 7, 9, 9));
  EXPECT_THAT(plan.runs, IsEmpty());
}

TEST(ValuePlanTest, AnActivationIsComputedWithTheLayerBefore) {
  const ValuePlan plan = Plan("layers { dense { units: 7 } } layers { relu {} } layers { dense { units: 9 } }");
  EXPECT_THAT(plan.place, ElementsAre(0, 1, 1, 2));
  EXPECT_EQ(plan.steps[0].activation, Activation::kRelu);
  EXPECT_TRUE(plan.steps[1].done_by_the_one_before);
  EXPECT_FALSE(plan.steps[2].done_by_the_one_before);
}

TEST(ValuePlanTest, ValuesThatAreNotKeptShareOnePlace) {
  const ValuePlan plan = Plan(
      "layers { dense { units: 7 } } layers { tanh {} recompute: true } "
      "layers { dense { units: 9 } } layers { gelu {} recompute: true } layers { dense { units: 5 } }");
  EXPECT_THAT(plan.place, ElementsAre(0, 1, 2, 3, 2, 4));
  EXPECT_THAT(Elements(plan), ElementsAre(32, 7, 9, 9, 5));
  ASSERT_EQ(plan.runs.size(), 2);
  EXPECT_EQ(plan.runs[0].first, 1);
  EXPECT_EQ(plan.runs[0].end, 2);
  EXPECT_EQ(plan.runs[1].first, 3);
  EXPECT_EQ(plan.runs[1].end, 4);
  EXPECT_EQ(plan.steps[0].run, std::nullopt);
  EXPECT_EQ(plan.steps[1].run, 0);
  EXPECT_EQ(plan.steps[3].run, 1);
}

TEST(ValuePlanTest, LayersInARowMakeOneRun) {
  const ValuePlan plan = Plan(
      "layers { dense { units: 7 } } layers { tanh {} recompute: true } layers { dense { units: 9 } recompute: true } "
      "layers { gelu {} } layers { tanh {} recompute: true } layers { dense { units: 5 } }");
  EXPECT_THAT(plan.place, ElementsAre(0, 1, 2, 3, 4, 2, 5));
  EXPECT_THAT(Elements(plan), ElementsAre(32, 7, 9, 9, 9, 5));
  ASSERT_EQ(plan.runs.size(), 2);
  EXPECT_EQ(plan.runs[0].first, 1);
  EXPECT_EQ(plan.runs[0].end, 3);
}

TEST(ValuePlanTest, WhatSharesItsPlaceWithAKeptValueIsKept) {
  EXPECT_THAT(
      Plan("layers { dense { units: 7 } } layers { relu {} recompute: true } layers { dense { units: 9 } }").runs,
      IsEmpty());
  EXPECT_THAT(
      Plan("layers { dense { units: 7 } recompute: true } layers { relu {} } layers { dense { units: 9 } }").runs,
      IsEmpty());
  const ValuePlan both = Plan(
      "layers { dense { units: 7 } recompute: true } layers { relu {} recompute: true } "
      "layers { dense { units: 9 } }");
  ASSERT_EQ(both.runs.size(), 1);
  EXPECT_EQ(both.runs[0].first, 0);
  EXPECT_EQ(both.runs[0].end, 2);
}

TEST(ValuePlanTest, WhatAShortcutUsesIsKept) {
  const ValuePlan plan = Plan(
      "layers { tanh {} recompute: true } "
      "layers { residual { layers { gelu {} } layers { tanh {} } } recompute: true } layers { dense { units: 5 } }");
  // Values: features, tanh, gelu, tanh, the sum in its place, dense.
  EXPECT_THAT(plan.place, ElementsAre(0, 1, 2, 3, 3, 4));
  ASSERT_EQ(plan.runs.size(), 1);
  EXPECT_EQ(plan.runs[0].first, 1);
  EXPECT_EQ(plan.runs[0].end, 4);
}

TEST(ValuePlanTest, ASumThatIsKeptEndsARun) {
  const ValuePlan plan = Plan(
      "layers { residual { layers { dense { units: 9 } } shortcut { dense { units: 9 } recompute: true } } } "
      "layers { gelu {} recompute: true } layers { dense { units: 5 } }");
  ASSERT_EQ(plan.runs.size(), 2);
  EXPECT_EQ(plan.runs[0].first, 1);
  EXPECT_EQ(plan.runs[0].end, 2);
  EXPECT_EQ(plan.runs[1].first, 3);
  EXPECT_EQ(plan.runs[1].end, 4);
}

TEST(ValuePlanTest, SparseKeepsAboutTheSquareRootOfThem) {
  std::string layers;
  for (int i = 0; i < 16; ++i) layers += "layers { tanh {} } ";
  const ValuePlan plan = Plan(layers + "layers { dense { units: 32 } }", /*sparse=*/true);
  // The features and five of the other 17 values are kept; runs share two places.
  EXPECT_EQ(plan.places.size(), 8);
  EXPECT_EQ(plan.runs.size(), 6);
}

TEST(ValuePlanTest, SparseKeepsWhatSavesNothing) {
  const ValuePlan plan = Plan("layers { dense { units: 7 } } layers { dense { units: 9 } }", /*sparse=*/true);
  EXPECT_THAT(plan.runs, IsEmpty());
}

TEST(ValuePlanTest, CopiesToAnotherDeviceHavePlacesThere) {
  const ValuePlan plan = Plan("layers { dense { units: 7 } } layers { tanh {} device: \"1\" }");
  EXPECT_THAT(Elements(plan), ElementsAre(32, 7, 7, 7));
  EXPECT_EQ(plan.places[1].device, 0);
  EXPECT_EQ(plan.places[2].device, 1);
  EXPECT_EQ(plan.places[3].device, 1);
}

}  // namespace
}  // namespace ballast
