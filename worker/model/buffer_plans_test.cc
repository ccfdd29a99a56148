// SPDX-License-Identifier: Apache-2.0
#include "worker/model/buffer_plans.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// Builds a model over 4 x 4 images of 2 channels, on two devices.
LayerChain Chain(const std::string& layers) {
  v1::Model config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "input { height: 4 width: 4 channels: 2 } loss { softmax_cross_entropy {} } " + layers, &config));
  return BuildLayerChain(config, 32, {.devices = {"0", "1"}}).value();
}

ValuePlan PlanValuesOf(const std::string& layers, bool sparse = false) { return PlanValues(Chain(layers), sparse); }
GradientPlan PlanGradientsOf(const std::string& layers) { return PlanGradients(Chain(layers)); }

std::vector<int64_t> Elements(const ValuePlan& plan) {
  std::vector<int64_t> elements;
  for (const ValuePlan::Place& place : plan.places) elements.push_back(place.elements);
  return elements;
}

// Returns the first node and the end of each run.
std::vector<std::pair<size_t, size_t>> Runs(const ValuePlan& plan) {
  std::vector<std::pair<size_t, size_t>> runs;
  for (const ValuePlan::Run& run : plan.runs) runs.emplace_back(run.first, run.end);
  return runs;
}

TEST(ValuePlanTest, EachValueIsKept) {
  const ValuePlan plan =
      PlanValuesOf("layers { dense { units: 7 } } layers { tanh {} } layers { dense { units: 9 } } layers { gelu {} }");
  EXPECT_THAT(plan.place, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(Elements(plan), ElementsAre(32, 7, 7, 9, 9));
  EXPECT_THAT(plan.runs, IsEmpty());
}

TEST(ValuePlanTest, AnActivationIsComputedWithTheLayerBefore) {
  const ValuePlan plan = PlanValuesOf("layers { dense { units: 7 } } layers { relu {} } layers { dense { units: 9 } }");
  EXPECT_THAT(plan.place, ElementsAre(0, 1, 1, 2));
  EXPECT_EQ(plan.steps[0].activation, Activation::kRelu);
  EXPECT_TRUE(plan.steps[1].done_by_the_one_before);
  EXPECT_FALSE(plan.steps[2].done_by_the_one_before);
}

TEST(ValuePlanTest, ValuesThatAreNotKeptShareOnePlace) {
  const ValuePlan plan = PlanValuesOf(
      "layers { dense { units: 7 } } layers { tanh {} recompute: true } "
      "layers { dense { units: 9 } } layers { gelu {} recompute: true } layers { dense { units: 5 } }");
  EXPECT_THAT(plan.place, ElementsAre(0, 1, 2, 3, 2, 4));
  EXPECT_THAT(Elements(plan), ElementsAre(32, 7, 9, 9, 5));
  EXPECT_THAT(Runs(plan), ElementsAre(Pair(1, 2), Pair(3, 4)));
  EXPECT_EQ(plan.steps[0].run, std::nullopt);
  EXPECT_EQ(plan.steps[1].run, 0);
  EXPECT_EQ(plan.steps[3].run, 1);
}

TEST(ValuePlanTest, LayersInARowMakeOneRun) {
  const ValuePlan plan = PlanValuesOf(
      "layers { dense { units: 7 } } layers { tanh {} recompute: true } layers { dense { units: 9 } recompute: true } "
      "layers { gelu {} } layers { tanh {} recompute: true } layers { dense { units: 5 } }");
  EXPECT_THAT(plan.place, ElementsAre(0, 1, 2, 3, 4, 2, 5));
  EXPECT_THAT(Elements(plan), ElementsAre(32, 7, 9, 9, 9, 5));
  EXPECT_THAT(Runs(plan), ElementsAre(Pair(1, 3), Pair(4, 5)));
}

TEST(ValuePlanTest, WhatSharesItsPlaceWithAKeptValueIsKept) {
  EXPECT_THAT(
      PlanValuesOf("layers { dense { units: 7 } } layers { relu {} recompute: true } layers { dense { units: 9 } }")
          .runs,
      IsEmpty());
  EXPECT_THAT(
      PlanValuesOf("layers { dense { units: 7 } recompute: true } layers { relu {} } layers { dense { units: 9 } }")
          .runs,
      IsEmpty());
  const ValuePlan both = PlanValuesOf(
      "layers { dense { units: 7 } recompute: true } layers { relu {} recompute: true } layers { dense { units: 9 } }");
  EXPECT_THAT(Runs(both), ElementsAre(Pair(0, 2)));
}

TEST(ValuePlanTest, WhatAShortcutUsesIsKept) {
  const ValuePlan plan = PlanValuesOf(
      "layers { tanh {} recompute: true } "
      "layers { residual { layers { gelu {} } layers { tanh {} } } recompute: true } layers { dense { units: 5 } }");
  // Values: features, tanh, gelu, tanh, the sum in its place, dense.
  EXPECT_THAT(plan.place, ElementsAre(0, 1, 2, 3, 3, 4));
  EXPECT_THAT(Runs(plan), ElementsAre(Pair(1, 4)));
}

TEST(ValuePlanTest, ASumThatIsKeptEndsARun) {
  const ValuePlan plan = PlanValuesOf(
      "layers { residual { layers { dense { units: 9 } } shortcut { dense { units: 9 } recompute: true } } } "
      "layers { gelu {} recompute: true } layers { dense { units: 5 } }");
  EXPECT_THAT(Runs(plan), ElementsAre(Pair(1, 2), Pair(3, 4)));
}

TEST(ValuePlanTest, SparseKeepsAboutTheSquareRootOfThem) {
  std::string layers;
  for (int i = 0; i < 16; ++i) layers += "layers { tanh {} } ";
  const ValuePlan plan = PlanValuesOf(layers + "layers { dense { units: 32 } }", /*sparse=*/true);
  // The features and five of the other 17 values are kept; runs share two places.
  EXPECT_EQ(plan.places.size(), 8);
  EXPECT_EQ(plan.runs.size(), 6);
}

TEST(ValuePlanTest, SparseKeepsWhatSavesNothing) {
  const ValuePlan plan = PlanValuesOf("layers { dense { units: 7 } } layers { dense { units: 9 } }", /*sparse=*/true);
  EXPECT_THAT(plan.runs, IsEmpty());
}

TEST(ValuePlanTest, CopiesToAnotherDeviceHavePlacesThere) {
  const ValuePlan plan = PlanValuesOf("layers { dense { units: 7 } } layers { tanh {} device: \"1\" }");
  EXPECT_THAT(Elements(plan), ElementsAre(32, 7, 7, 7));
  EXPECT_EQ(plan.places[1].device, 0);
  EXPECT_EQ(plan.places[2].device, 1);
  EXPECT_EQ(plan.places[3].device, 1);
}

// Describes each node's step as "dy>dx+other" with the indices of buffers; "-" stands for none.
std::vector<std::string> Steps(const GradientPlan& plan) {
  std::vector<std::string> steps;
  const auto text = [](std::optional<size_t> buffer) { return buffer.has_value() ? absl::StrCat(*buffer) : "-"; };
  for (const GradientPlan::Step& step : plan.steps) {
    steps.push_back(!step.dy.has_value() ? "-" : absl::StrCat(*step.dy, ">", text(step.dx)));
    if (step.other.has_value()) absl::StrAppend(&steps.back(), "+", *step.other);
  }
  return steps;
}

constexpr char kConv[] = "layers { conv2d { filters: 2 kernel: 3 padding: 1 } } ";

TEST(GradientPlanTest, AChainTakesTurnsWithTwoBuffers) {
  const GradientPlan plan =
      PlanGradientsOf("layers { dense { units: 7 } } layers { dense { units: 9 } } layers { dense { units: 5 } }");
  EXPECT_EQ(plan.loss, 0);
  EXPECT_THAT(Steps(plan), ElementsAre("0>-", "1>0", "0>1"));
  // Each buffer is as large as the largest gradient that it holds.
  EXPECT_THAT(plan.buffers, ElementsAre(7, 9));
}

TEST(GradientPlanTest, GradientsAreWhereTheirValuesAre) {
  const GradientPlan plan = PlanGradientsOf(
      "layers { dense { units: 7 } } layers { dense { units: 9 } device: \"1\" } layers { relu {} device: \"0\" }");
  // Nodes: dense, copy of its output, dense, copy of its output, relu in place.
  EXPECT_THAT(Steps(plan), ElementsAre("0>-", "2>0", "1>2", "0>1", "0>0"));
  EXPECT_THAT(plan.buffers, ElementsAre(9, 9, 7));
  EXPECT_THAT(plan.devices, ElementsAre(0, 1, 1));
}

TEST(GradientPlanTest, TheFeaturesGradientIsNotWanted) {
  const GradientPlan plan = PlanGradientsOf("layers { relu {} } layers { dense { units: 7 } }");
  EXPECT_THAT(Steps(plan), ElementsAre("-", "0>-"));
  EXPECT_THAT(plan.buffers, ElementsAre(7));
}

TEST(GradientPlanTest, LayersThatWriteOverTheirInputNeedNoBuffer) {
  const GradientPlan plan = PlanGradientsOf("layers { dense { units: 7 } } layers { relu {} } layers { dropout {} }");
  EXPECT_THAT(Steps(plan), ElementsAre("0>-", "0>0", "0>0"));
  EXPECT_THAT(plan.buffers, ElementsAre(7));
}

// Nodes: convolution, convolution inside the residual, sum.
TEST(GradientPlanTest, AShortcutsGradientIsKeptAndAdded) {
  const GradientPlan plan = PlanGradientsOf(std::string(kConv) + "layers { residual { " + kConv + "} }");
  EXPECT_THAT(Steps(plan), ElementsAre("1>-", "0>1+0", "0>-"));
  EXPECT_THAT(plan.buffers, ElementsAre(32, 32));
}

// In place, the ReLU's backward would overwrite the gradient that the shortcut still needs.
TEST(GradientPlanTest, AGradientInUseIsNotWrittenOver) {
  const GradientPlan plan =
      PlanGradientsOf(std::string(kConv) + "layers { residual { " + kConv + "layers { relu {} } } }");
  EXPECT_THAT(Steps(plan), ElementsAre("2>-", "1>2+0", "0>1", "0>-"));
}

// A residual directly inside a residual: the value before both gets the same gradient twice, plus that of the layers.
TEST(GradientPlanTest, AShortcutOfAShortcutIsAddedTwice) {
  const GradientPlan plan =
      PlanGradientsOf(std::string(kConv) + "layers { residual { layers { residual { " + kConv + "} } } }");
  EXPECT_THAT(Steps(plan), ElementsAre("2>-", "0>2+1", "0>1+0", "0>-"));
}

}  // namespace
}  // namespace ballast
