// SPDX-License-Identifier: Apache-2.0
#include "worker/model/layer_chain.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

v1::Model Parse(const std::string& text) {
  v1::Model config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return config;
}

// The message of the refusal, or "accepted".
std::string Refusal(const std::string& text, int64_t features = 784) {
  const absl::Status status = BuildLayerChain(Parse(text), features).status();
  if (status.ok()) return "accepted";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(LayerChainTest, DescribesLayersLossAndParameters) {
  const absl::StatusOr<LayerChain> chain = BuildLayerChain(Parse(R"pb(layers { dense { units: 512 } }
                                                                      layers { relu {} }
                                                                      layers { dropout { rate: 0.5 } }
                                                                      layers { dense { units: 10 no_bias: true } }
                                                                      loss { softmax_cross_entropy {} })pb"),
                                                           784);
  ASSERT_TRUE(chain.ok()) << chain.status();
  EXPECT_EQ(Describe(*chain),
            "784 -> dense 512 -> relu -> dropout 0.5 -> dense 10 -> softmax cross-entropy, "
            "407,040 parameters");
}

TEST(LayerChainTest, FeaturesOutOfRangeAreRefused) {
  EXPECT_EQ(Refusal("layers { dense { units: 2 } } loss { softmax_cross_entropy {} }", 0),
            "model: got 0 features, want 1 to 1099511627776");
  EXPECT_EQ(Refusal("layers { relu {} }", int64_t{1} << 62),
            "model: got 4611686018427387904 features, want 1 to 1099511627776");
}

TEST(LayerChainTest, NoLayersAreRefused) {
  EXPECT_EQ(Refusal("loss { softmax_cross_entropy {} }"), "model: got no layers, want at least 1");
}

TEST(LayerChainTest, UnitsOutOfRangeAreRefused) {
  EXPECT_EQ(Refusal("layers { dense {} }"), "layer \"dense1\": units is 0, want 1 to 1048576");
  EXPECT_EQ(Refusal("layers { dense { units: 1048577 } }"), "layer \"dense1\": units is 1048577, want 1 to 1048576");
  EXPECT_EQ(Refusal("layers { dense { units: -3 } }"), "layer \"dense1\": units is -3, want 1 to 1048576");
}

TEST(LayerChainTest, MoreWeightsThanATensorHoldsAreRefused) {
  EXPECT_EQ(Refusal("layers { dense { units: 3 } }", int64_t{1} << 40),
            "layer \"dense1\": 3 units of 1099511627776 inputs each, want at most 1099511627776 "
            "weights");
}

TEST(LayerChainTest, InputsThatTheLayerBeforeDoesNotGiveAreRefused) {
  EXPECT_EQ(Refusal(R"pb(layers { dense { units: 512 } }
                         layers { relu {} }
                         layers {
                           name: "out"
                           dense { units: 10 inputs: 256 }
                         })pb"),
            "layer \"out\": gets 512 inputs, want 256 (its field `inputs`)");
}

TEST(LayerChainTest, InputsThatFitAreTaken) {
  EXPECT_EQ(Refusal(R"pb(layers { dense { units: 10 inputs: 784 } }
                         loss { softmax_cross_entropy {} })pb"),
            "accepted");
}

TEST(LayerChainTest, LayerWithoutAKindIsRefused) {
  EXPECT_EQ(Refusal("layers { name: \"odd\" }"),
            "layer \"odd\": its kind is not set, want one of average_pool, batch_norm, conv2d, dense, dropout, gelu, "
            "layer_norm, max_pool, relu, residual, tanh");
  EXPECT_THAT(Refusal("layers {}"), HasSubstr("layer \"layer1\": its kind is not set"));
}

TEST(LayerChainTest, NameThatALayerHasIsRefused) {
  EXPECT_EQ(Refusal(R"pb(layers {
                           name: "a"
                           dense { units: 3 }
                         }
                         layers {
                           name: "a"
                           relu {}
                         })pb"),
            "layer \"a\": an earlier layer has that name, want another");
  EXPECT_EQ(Refusal(R"pb(layers {
                           name: "dense2"
                           dense { units: 3 }
                         }
                         layers { dense { units: 3 } })pb"),
            "layer \"dense2\": an earlier layer has that name, want another");
}

TEST(LayerChainTest, DropoutRateOutOfRangeIsRefused) {
  EXPECT_EQ(Refusal("layers { dropout { rate: 1 } }"), "layer \"dropout1\": rate is 1, want 0 up to but not 1");
  EXPECT_EQ(Refusal("layers { dropout { rate: -0.5 } }"), "layer \"dropout1\": rate is -0.5, want 0 up to but not 1");
  EXPECT_EQ(Refusal("layers { dropout { rate: nan } }"), "layer \"dropout1\": rate is nan, want 0 up to but not 1");
}

TEST(LayerChainTest, MissingLossIsRefused) {
  EXPECT_EQ(Refusal("layers { dense { units: 3 } }"),
            "model: its loss is not set, want one of softmax_cross_entropy, mean_squared_error");
}

TEST(LayerChainTest, MeanSquaredErrorWantsOneOutput) {
  EXPECT_EQ(Refusal("layers { dense { units: 3 } } loss { mean_squared_error {} }"),
            "loss mean_squared_error: the last layer, \"dense1\", has 3 outputs, want 1");
}

TEST(LayerChainTest, SoftmaxCrossEntropyWantsAtLeastTwoClasses) {
  EXPECT_EQ(Refusal("layers { dense { units: 1 } } loss { softmax_cross_entropy {} }"),
            "loss softmax_cross_entropy: the last layer, \"dense1\", has 1 output, want one for "
            "each of at least 2 classes");
}

TEST(LayerChainTest, ModelThatCannotLearnIsRefused) {
  EXPECT_EQ(Refusal("layers { relu {} } loss { softmax_cross_entropy {} }"),
            "model: no layer has parameters, so there is nothing to train; want at least one "
            "dense or conv2d");
}

}  // namespace
}  // namespace ballast
