// SPDX-License-Identifier: Apache-2.0
#include "common/job/layer_names.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>

namespace ballast {
namespace {

using ::testing::ElementsAre;

TEST(LayerNamesTest, CountEachKindAlsoInsideResidualsAndPastLayersWithNames) {
  v1::Model model;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
layers { conv2d {} }
layers { residual { layers { conv2d {} } layers { relu {} } shortcut { conv2d {} } } }
layers { name: "wide" dense { units: 4 } }
layers { dense { units: 2 } }
layers {})",
                                                            &model));
  EXPECT_THAT(LayerNames(model),
              ElementsAre("conv2d1", "residual1", "conv2d2", "relu1", "conv2d3", "wide", "dense2", "layer1"));
  NameLayers(model);
  EXPECT_EQ(model.layers(1).residual().shortcut(0).name(), "conv2d3");
}

}  // namespace
}  // namespace ballast
