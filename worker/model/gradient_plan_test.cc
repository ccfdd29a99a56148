// SPDX-License-Identifier: Apache-2.0
#include "worker/model/gradient_plan.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

namespace ballast {
namespace {

using ::testing::ElementsAre;

// Plans a model over 4 x 4 images of 2 channels.
GradientPlan Plan(const std::string& layers) {
  v1::Model config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "input { height: 4 width: 4 channels: 2 } loss { softmax_cross_entropy {} } " + layers, &config));
  const absl::StatusOr<LayerChain> chain = BuildLayerChain(config, 32, {"0", "1"});
  EXPECT_TRUE(chain.ok()) << chain.status();
  return chain.ok() ? PlanGradients(*chain) : GradientPlan();
}

constexpr char kConv[] = "layers { conv2d { filters: 2 kernel: 3 padding: 1 } } ";

TEST(GradientPlanTest, AChainTakesTurnsWithTwoBuffers) {
  const GradientPlan plan =
      Plan("layers { dense { units: 7 } } layers { dense { units: 9 } } layers { dense { units: 5 } }");
  EXPECT_EQ(plan.loss, 0);
  EXPECT_EQ(plan.steps[2].dy, 0);
  EXPECT_EQ(plan.steps[2].dx, 1);
  EXPECT_EQ(plan.steps[1].dy, 1);
  EXPECT_EQ(plan.steps[1].dx, 0);
  EXPECT_EQ(plan.steps[0].dy, 0);
  // Each buffer is as large as the largest gradient that it holds.
  EXPECT_THAT(plan.buffers, ElementsAre(7, 9));
}

TEST(GradientPlanTest, GradientsAreWhereTheirValuesAre) {
  const GradientPlan plan = Plan(
      "layers { dense { units: 7 } } layers { dense { units: 9 } device: \"1\" } layers { relu {} device: \"0\" }");
  // Nodes: dense, copy of its output, dense, copy of its output, relu in place.
  EXPECT_EQ(plan.steps[4].dy, 0);
  EXPECT_EQ(plan.steps[4].dx, 0);
  EXPECT_EQ(plan.steps[3].dy, 0);
  EXPECT_EQ(plan.steps[3].dx, 1);
  EXPECT_EQ(plan.steps[2].dy, 1);
  EXPECT_EQ(plan.steps[2].dx, 2);
  EXPECT_EQ(plan.steps[1].dy, 2);
  EXPECT_EQ(plan.steps[1].dx, 0);
  EXPECT_EQ(plan.steps[0].dy, 0);
  EXPECT_THAT(plan.buffers, ElementsAre(9, 9, 7));
  EXPECT_THAT(plan.devices, ElementsAre(0, 1, 1));
}

TEST(GradientPlanTest, TheFeaturesGradientIsNotWanted) {
  const GradientPlan plan = Plan("layers { relu {} } layers { dense { units: 7 } }");
  EXPECT_EQ(plan.steps[1].dy, 0);
  EXPECT_EQ(plan.steps[1].dx, std::nullopt);
  EXPECT_EQ(plan.steps[0].dy, std::nullopt);
  EXPECT_THAT(plan.buffers, ElementsAre(7));
}

TEST(GradientPlanTest, LayersThatWriteOverTheirInputNeedNoBuffer) {
  const GradientPlan plan = Plan("layers { dense { units: 7 } } layers { relu {} } layers { dropout {} }");
  EXPECT_EQ(plan.steps[2].dx, 0);
  EXPECT_EQ(plan.steps[1].dx, 0);
  EXPECT_EQ(plan.steps[0].dy, 0);
  EXPECT_THAT(plan.buffers, ElementsAre(7));
}

// Nodes: convolution, convolution inside the residual, sum.
TEST(GradientPlanTest, AShortcutsGradientIsKeptAndAdded) {
  const GradientPlan plan = Plan(std::string(kConv) + "layers { residual { " + kConv + "} }");
  EXPECT_EQ(plan.steps[2].dx, std::nullopt);
  EXPECT_EQ(plan.steps[1].dy, 0);
  EXPECT_EQ(plan.steps[1].dx, 1);
  EXPECT_EQ(plan.steps[1].other, 0);
  EXPECT_EQ(plan.steps[0].dy, 1);
  EXPECT_THAT(plan.buffers, ElementsAre(32, 32));
}

// In place, the ReLU's backward would overwrite the gradient that the shortcut still needs.
TEST(GradientPlanTest, AGradientInUseIsNotWrittenOver) {
  const GradientPlan plan = Plan(std::string(kConv) + "layers { residual { " + kConv + "layers { relu {} } } }");
  EXPECT_EQ(plan.steps[2].dy, 0);
  EXPECT_EQ(plan.steps[2].dx, 1);
  EXPECT_EQ(plan.steps[1].dy, 1);
  EXPECT_EQ(plan.steps[1].dx, 2);
  EXPECT_EQ(plan.steps[1].other, 0);
}

// A residual directly inside a residual: the value before both gets the same gradient twice, plus that of the layers.
TEST(GradientPlanTest, AShortcutOfAShortcutIsAddedTwice) {
  const GradientPlan plan = Plan(std::string(kConv) + "layers { residual { layers { residual { " + kConv + "} } } }");
  EXPECT_EQ(plan.steps[2].dy, 0);
  EXPECT_EQ(plan.steps[2].other, 0);
  EXPECT_EQ(plan.steps[2].dx, 1);
  EXPECT_EQ(plan.steps[1].dy, 0);
  EXPECT_EQ(plan.steps[1].other, 1);
  EXPECT_EQ(plan.steps[1].dx, 2);
  EXPECT_EQ(plan.steps[0].dy, 2);
}

}  // namespace
}  // namespace ballast
