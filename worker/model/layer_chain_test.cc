// SPDX-License-Identifier: Apache-2.0
#include "worker/model/layer_chain.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"

namespace ballast {
namespace {

v1::Model Parse(const std::string& text) {
  v1::Model config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return config;
}

// Returns the error message, or "accepted".
std::string Refusal(const std::string& text, int64_t features = 784) {
  const absl::Status status = BuildLayerChain(Parse(text), features).status();
  if (status.ok()) return "accepted";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(LayerChainTest, DescribesLayersLossAndParameters) {
  const auto chain =
      BuildLayerChain(Parse("layers { dense { units: 512 } } layers { relu {} } layers { dropout { rate: 0.5 } } "
                            "layers { dense { units: 10 no_bias: true } } loss { softmax_cross_entropy {} }"),
                      784);
  ASSERT_TRUE(chain.ok()) << chain.status();
  EXPECT_EQ(Describe(*chain),
            "784 -> dense 512 -> relu -> dropout 0.5 -> dense 10 -> softmax cross-entropy, 407,040 parameters");
}

TEST(LayerChainTest, CarriesValuesToWhereTheyAreUsedOnce) {
  const auto chain =
      BuildLayerChain(Parse("layers { tanh {} device: '1' } layers { residual { layers { gelu {} device: '0' } layers "
                            "{ dense { units: 4 } } } } loss { softmax_cross_entropy {} }"),
                      4, {.devices = {"0", "1"}});
  ASSERT_TRUE(chain.ok()) << chain.status();
  EXPECT_EQ(chain->features_device, 1);
  ASSERT_EQ(chain->nodes.size(), 5);
  EXPECT_EQ(chain->nodes[0].device, 1);
  EXPECT_TRUE(chain->nodes[1].carries);
  EXPECT_EQ(chain->nodes[1].input, 1);
  EXPECT_EQ(chain->nodes[1].device, 0);
  EXPECT_EQ(chain->nodes[1].name, "gelu1 input");
  EXPECT_EQ(chain->nodes[2].input, 2);
  // The shortcut uses the existing copy.
  EXPECT_TRUE(chain->nodes[4].sums());
  EXPECT_EQ(chain->nodes[4].shortcut, 2);
  EXPECT_EQ(chain->nodes[4].device, 0);
}

TEST(LayerChainTest, DeviceThatIsNotThereIsRefused) {
  const v1::Model model = Parse("layers { dense { units: 2 } device: \"1\" } loss { softmax_cross_entropy {} }");
  EXPECT_EQ(BuildLayerChain(model, 4, {.devices = {"cpu"}}).status().message(),
            "layer \"dense1\": device is \"1\", want cpu: this worker has no other");
}

TEST(LayerChainTest, DescribesImagesAndResiduals) {
  const absl::StatusOr<LayerChain> chain = BuildLayerChain(
      Parse(
          "input { height: 28 width: 28 } layers { conv2d { filters: 4 kernel: 3 padding: 1 } } layers { max_pool { "
          "kernel: [2, 1] } } layers { residual { layers { conv2d { filters: 8 kernel: 3 stride: 2 padding: 1 no_bias: "
          "true } } layers { batch_norm {} } } } layers { residual { layers { layer_norm {} } shortcut { relu {} } } } "
          "layers { average_pool {} } layers { dense { units: 10 } } loss { softmax_cross_entropy {} }"),
      784);
  ASSERT_TRUE(chain.ok()) << chain.status();
  EXPECT_EQ(Describe(*chain),
            "28x28x1 -> conv2d 4 3x3 -> max_pool 2x1 -> residual (conv2d 8 3x3 -> batch_norm) + conv2d 8 1x1 -> "
            "residual (layer_norm) + (relu) -> average_pool 7x14 -> dense 10 -> softmax cross-entropy, 482 parameters");
}

TEST(LayerChainTest, NamesOfLayersInsideOfResidualsCountWithTheOthers) {
  const auto chain =
      BuildLayerChain(Parse("layers { dense { units: 4 } } layers { residual { layers { dense { units: 3 } } } } "
                            "layers { dense { units: 2 } } loss { softmax_cross_entropy {} }"),
                      784);
  ASSERT_TRUE(chain.ok()) << chain.status();
  std::vector<std::string> names;
  for (const ChainNode& node : chain->nodes) {
    if (node.layer != nullptr) names.push_back(node.layer->Parameters()[0].name);
  }
  EXPECT_THAT(names,
              ::testing::ElementsAre("dense1/weight", "dense2/weight", "residual1/projection/weight", "dense3/weight"));
}

TEST(LayerChainTest, ImagesThatAreNotTheFeaturesAreRefused) {
  const auto refusal = [](const std::string& input) {
    return Refusal("input { " + input + " } layers { dense { units: 2 } } loss { softmax_cross_entropy {} }");
  };
  const std::string want = ", want height x width x channels to make the data's 784 features";
  EXPECT_EQ(refusal("height: 28 width: 28"), "accepted");
  EXPECT_EQ(refusal("height: 14 width: 14 channels: 4"), "accepted");
  EXPECT_EQ(refusal("height: 28 width: 28 channels: 3"), "model.input: got 28x28x3" + want);
  EXPECT_EQ(refusal("height: 28 width: 27"), "model.input: got 28x27x1" + want);
  EXPECT_EQ(refusal("height: 784"), "model.input: got 784x0x1" + want);
  EXPECT_EQ(refusal("height: -28 width: -28"), "model.input: got -28x-28x1" + want);
  EXPECT_EQ(refusal("height: 4294967296 width: 4294967296"), "model.input: got 4294967296x4294967296x1" + want);
}

TEST(LayerChainTest, WindowsThatDoNotFitAreRefused) {
  const auto refusal = [](const std::string& layer) {
    return Refusal("input { height: 4 width: 196 } layers { " + layer + " } loss { softmax_cross_entropy {} }");
  };
  EXPECT_EQ(refusal("conv2d { filters: 2 kernel: 5 }"),
            "layer \"conv2d1\": kernel is 5x5, want at most the padded input's 4x196; its input is 4x196x1");
  EXPECT_EQ(refusal("conv2d { filters: 2 kernel: [6, 197] padding: [1, 0] }"),
            "layer \"conv2d1\": kernel is 6x197, want at most the padded input's 6x196; its input is 4x196x1");
  EXPECT_EQ(refusal("conv2d { filters: 2 kernel: 6 padding: 1 }"), "accepted");
  EXPECT_EQ(refusal("conv2d { filters: 2 kernel: 3 padding: [1, 3] }"),
            "layer \"conv2d1\": padding is 1x3, want less than the kernel, 3x3");
  EXPECT_EQ(refusal("conv2d { filters: 2 kernel: 3 stride: 0 }"), "layer \"conv2d1\": stride is 0, want 1 to 65536");
  EXPECT_EQ(refusal("conv2d { filters: 2 kernel: [3, -3] }"), "layer \"conv2d1\": kernel is -3, want 1 to 65536");
  EXPECT_EQ(refusal("conv2d { filters: 2 kernel: [1, 2, 3] }"),
            "layer \"conv2d1\": kernel has 3 numbers, want 1, or 2: [vertical, horizontal]");
  EXPECT_EQ(refusal("conv2d { filters: 2 }"), "layer \"conv2d1\": kernel is not set, want the size of the window");
  EXPECT_EQ(refusal("conv2d { kernel: 3 }"), "layer \"conv2d1\": filters is 0, want 1 to 1048576");
  EXPECT_EQ(refusal("max_pool { kernel: 2 padding: 2 }"),
            "layer \"max_pool1\": padding is 2x2, want less than the kernel, 2x2");
  EXPECT_EQ(refusal("average_pool { kernel: [5, 1] }"),
            "layer \"average_pool1\": kernel is 5x1, want at most the padded input's 4x196; its input is 4x196x1");
}

TEST(LayerChainTest, ResidualsThatDoNotAddUpAreRefused) {
  EXPECT_EQ(Refusal("layers { residual {} }"), "layer \"residual1\": got no layers, want at least 1");
  EXPECT_EQ(Refusal("layers { residual { layers { dense { units: 3 } } shortcut { dense { units: 4 } } } }"),
            "layer \"residual1\": its layers give 3, its shortcut 4, want the same");
  EXPECT_EQ(
      Refusal("input { height: 28 width: 28 } layers { residual { layers { conv2d { filters: 1 kernel: 3 } } } }"),
      "layer \"residual1\": its layers give 26x26x1 from 28x28x1, which no stride of a convolution of kernel 1 "
      "gives; want a shortcut");
  std::string deep = "relu {}";
  for (int i = 0; i < 9; ++i) deep = "residual { layers { " + deep + " } }";
  EXPECT_EQ(Refusal("layers { " + deep + " }"), "layer \"residual9\": is more than 8 residuals deep");
}

// A model that is refused with an error, or accepted.
struct Case {
  std::string model;
  std::string want;
  int64_t features = 784;
};

class RefusalTest : public ::testing::TestWithParam<std::pair<const char*, std::vector<Case>>> {};

TEST_P(RefusalTest, NamesWhatItGotAndWants) {
  for (const Case& each : GetParam().second) EXPECT_EQ(Refusal(each.model, each.features), each.want) << each.model;
}

using Row = RefusalTest::ParamType;

constexpr char kKinds[] =
    "its kind is not set, want dense, relu, gelu, tanh, dropout, conv2d, max_pool, average_pool, batch_norm, "
    "layer_norm, residual, custom, embedding or dot_interaction";

INSTANTIATE_TEST_SUITE_P(
    LayerChainTest, RefusalTest,
    ::testing::Values(
        Row{"AWindowOverFlatValuesSaysHowToMakeThemImages",
            {{"layers { conv2d { filters: 2 kernel: 3 } }",
              "layer \"conv2d1\": kernel is 3x3, want at most the padded input's 1x1; its input is 1x1x784, flat: if "
              "the features are images, set model.input"}}},
        Row{"MoreWeightsOrOutputsThanAConvolutionMayHaveAreRefused",
            {{"layers { conv2d { filters: 1048576 kernel: 1 } }",
              "layer \"conv2d1\": 1048576 filters of 1x1x1048577, want at most 1099511627776 weights", 1048577},
             {"input { height: 1048577 width: 1 } layers { conv2d { filters: 1048576 kernel: 1 } }",
              "layer \"conv2d1\": gives 1048577x1x1048576, want at most 1099511627776 elements", 1048577}}},
        Row{"RatesOfNormalisationsOutOfRangeAreRefused",
            {{"layers { batch_norm { epsilon: -1 } }",
              "layer \"batch_norm1\": epsilon is -1, want above 0 and at most 1"},
             {"layers { batch_norm { momentum: 1.5 } }",
              "layer \"batch_norm1\": momentum is 1.5, want above 0 and at most 1"},
             {"layers { layer_norm { epsilon: nan } }",
              "layer \"layer_norm1\": epsilon is nan, want above 0 and at most 1"}}},
        Row{"FeaturesOutOfRangeAreRefused",
            {{"layers { dense { units: 2 } } loss { softmax_cross_entropy {} }",
              "model: got 0 features, want 1 to 1099511627776", 0},
             {"layers { relu {} }", "model: got 4611686018427387904 features, want 1 to 1099511627776",
              int64_t{1} << 62}}},
        Row{"NoLayersAreRefused", {{"loss { softmax_cross_entropy {} }", "model: got no layers, want at least 1"}}},
        Row{"UnitsOutOfRangeAreRefused",
            {{"layers { dense {} }", "layer \"dense1\": units is 0, want 1 to 1048576"},
             {"layers { dense { units: 1048577 } }", "layer \"dense1\": units is 1048577, want 1 to 1048576"},
             {"layers { dense { units: -3 } }", "layer \"dense1\": units is -3, want 1 to 1048576"}}},
        Row{"MoreWeightsThanATensorHoldsAreRefused",
            {{"layers { dense { units: 3 } }",
              "layer \"dense1\": 3 units of 1099511627776 inputs each, want at most 1099511627776 weights",
              int64_t{1} << 40}}},
        Row{"InputsThatTheLayerBeforeDoesNotGiveAreRefused",
            {{"layers { dense { units: 512 } } layers { relu {} } "
              "layers { name: 'out' dense { units: 10 inputs: 256 } }",
              "layer \"out\": gets 512 inputs, want 256 (its field `inputs`)"}}},
        Row{"InputsThatFitAreTaken",
            {{"layers { dense { units: 10 inputs: 784 } } loss { softmax_cross_entropy {} }", "accepted"}}},
        Row{"LayerWithoutAKindIsRefused",
            {{"layers { name: 'odd' }", std::string("layer \"odd\": ") + kKinds},
             {"layers {}", std::string("layer \"layer1\": ") + kKinds}}},
        Row{"NameThatALayerHasIsRefused",
            {{"layers { name: 'a' dense { units: 3 } } layers { name: 'a' relu {} }",
              "layer \"a\": an earlier layer has that name, want another"},
             {"layers { name: 'dense2' dense { units: 3 } } layers { dense { units: 3 } }",
              "layer \"dense2\": an earlier layer has that name, want another"}}},
        Row{"DropoutRateOutOfRangeIsRefused",
            {{"layers { dropout { rate: 1 } }", "layer \"dropout1\": rate is 1, want at least 0 and less than 1"},
             {"layers { dropout { rate: -0.5 } }", "layer \"dropout1\": rate is -0.5, want at least 0 and less than 1"},
             {"layers { dropout { rate: nan } }", "layer \"dropout1\": rate is nan, want at least 0 and less than 1"}}},
        Row{"MissingLossIsRefused",
            {{"layers { dense { units: 3 } }",
              "model: its loss is not set, want softmax_cross_entropy, mean_squared_error or sigmoid_cross_entropy"}}},
        Row{"MeanSquaredErrorWantsOneOutput",
            {{"layers { dense { units: 3 } } loss { mean_squared_error {} }",
              "loss mean_squared_error: the last layer, \"dense1\", has 3 outputs, want 1"}}},
        Row{"SoftmaxCrossEntropyWantsAtLeastTwoClasses",
            {{"layers { dense { units: 1 } } loss { softmax_cross_entropy {} }",
              "loss softmax_cross_entropy: the last layer, \"dense1\", has 1 output, want one for "
              "each of at least 2 classes"}}},
        Row{"ModelThatCannotLearnIsRefused",
            {{"layers { relu {} } loss { softmax_cross_entropy {} }",
              "model: no layer has parameters, so there is nothing to train; want at least one dense or conv2d"}}}),
    [](const auto& info) { return info.param.first; });

}  // namespace
}  // namespace ballast
