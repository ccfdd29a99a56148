// SPDX-License-Identifier: Apache-2.0
// Compares the model's loss and gradients with central differences of a float64 network, and trains small models.

#include "worker/model/model_fixture.h"
#include "worker/model/testing/reference_network.h"

namespace ballast {
namespace {

constexpr int64_t kExamples = 5;

using Values = ReferenceNetwork::Values;

struct Example {
  std::string name;
  std::string model;
  int64_t features = 7;
};

class ModelGradientTest : public ModelFixture, public ::testing::WithParamInterface<Example> {
 protected:
  double MeanLoss(const v1::Model& config, const std::vector<Values>& weights) const {
    return ReferenceNetwork(config, kExamples, weights, mask_).MeanLoss(features_, labels_);
  }

  std::vector<float> features_ = Random(kExamples * GetParam().features, 1.0f);
  std::vector<float> labels_;
  // Factors by which a dropout multiplies its input; each model here has at most one dropout.
  Values mask_;
};

TEST_P(ModelGradientTest, AgreesWithDifferencesInDoublePrecision) {
  const std::unique_ptr<Model> model = CreateRandom(GetParam().model, GetParam().features, 1.0f);
  ASSERT_NE(model, nullptr);
  const v1::Model config = ParseModel(GetParam().model);
  labels_ = model->classifies() ? std::vector<float>{0, 2, 1, 2, 0} : Random(kExamples, 1.0f);
  for (int i = 0; i < config.layers_size(); ++i) {
    if (!config.layers(i).has_dropout()) continue;
    // The model's seed is the fixture's 1; the batch's step and seed are 0.
    const std::unique_ptr<Buffer> ones = *device().Allocate(kExamples * 6);
    for (float& one : ones->host()) one = 1.0f;
    const Matrix mask{ones.get(), kExamples, 6};
    device().Dropout(config.layers(i).dropout().rate(), {1, 0, static_cast<uint32_t>(i)}, mask, mask);
    mask_.assign(ones->host().begin(), ones->host().end());
  }

  NoHooks hooks;
  const absl::StatusOr<BatchResult> result = model->Train({features_, labels_, kExamples, 0, 0}, hooks);
  ASSERT_TRUE(result.ok()) << result.status();

  std::vector<Values> weights;
  for (size_t p = 0; p < model->parameters().size(); ++p) {
    const absl::Span<const float> values = model->HostParameter(p);
    weights.emplace_back(values.begin(), values.end());
  }
  const double want_loss = MeanLoss(config, weights);
  EXPECT_NEAR(result->loss_sum / kExamples, want_loss, 1e-5 * std::max(1.0, want_loss));

  constexpr double kStep = 1e-6;
  for (size_t p = 0; p < weights.size(); ++p) {
    const std::vector<float> gradient = Gradient(*model, p);
    double largest = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      const double value = weights[p][i];
      weights[p][i] = value + kStep;
      const double above = MeanLoss(config, weights);
      weights[p][i] = value - kStep;
      const double below = MeanLoss(config, weights);
      weights[p][i] = value;
      const double want = (above - below) / (2 * kStep);
      largest = std::max(largest, std::abs(want));
      EXPECT_NEAR(gradient[i], want, 1e-5 * std::max(1.0, std::abs(want)))
          << model->parameters()[p].name << " element " << i;
    }
    // With tiny gradients, the comparison above would prove nothing.
    EXPECT_GT(largest, 1e-3) << model->parameters()[p].name;
  }
}

// A model from images of 6 x 5 pixels and 2 channels to 3 classes.
Example Images(const std::string& name, const std::string& layers) {
  return {name,
          "input { height: 6 width: 5 channels: 2 } " + layers +
              " layers { dense { units: 3 } } loss { softmax_cross_entropy {} }",
          60};
}

std::string Around(const std::string& layer) {
  return "layers { dense { units: 6 } } " + layer + " layers { dense { units: 3 } } loss { softmax_cross_entropy {} }";
}

INSTANTIATE_TEST_SUITE_P(
    Layers, ModelGradientTest,
    ::testing::Values(Example{"dense", Around("")},
                      Example{"dense_without_bias",
                              "layers { dense { units: 3 no_bias: true } } loss { softmax_cross_entropy {} }"},
                      Example{"relu", Around("layers { relu {} }")}, Example{"gelu", Around("layers { gelu {} }")},
                      Example{"tanh", Around("layers { tanh {} }")},
                      Example{"dropout", Around("layers { dropout { rate: 0.5 } }")},
                      Example{"activation_first",
                              "layers { tanh {} } layers { dense { units: 3 } } loss { softmax_cross_entropy {} }"},
                      Example{"activation_last",
                              "layers { dense { units: 3 } } layers { tanh {} } loss { softmax_cross_entropy {} }"},
                      Example{"mean_squared_error",
                              "layers { dense { units: 6 } } layers { gelu {} } "
                              "layers { dense { units: 1 } } loss { mean_squared_error {} }"}),
    [](const auto& info) { return info.param.name; });

constexpr char kConv[] = "layers { conv2d { filters: 3 kernel: 3 padding: 1 } } ";

INSTANTIATE_TEST_SUITE_P(
    ImageLayers, ModelGradientTest,
    ::testing::Values(
        Images("conv2d", kConv),
        Images("conv2d_rectangular",
               "layers { conv2d { filters: 4 kernel: [3, 2] stride: [2, 1] padding: [0, 1] no_bias: true } }"),
        Images("conv2d_twice", std::string(kConv) + "layers { relu {} } " + kConv + "layers { tanh {} }"),
        Images("max_pool", std::string(kConv) + "layers { max_pool { kernel: 2 } }"),
        Images("max_pool_overlapping", std::string(kConv) + "layers { max_pool { kernel: 3 stride: 2 padding: 1 } }"),
        Images("max_pool_of_the_image", std::string(kConv) + "layers { max_pool {} }"),
        Images("average_pool",
               std::string(kConv) + "layers { average_pool { kernel: [3, 2] stride: [2, 1] padding: [1, 1] } }"),
        Images("average_pool_of_the_image", std::string(kConv) + "layers { average_pool {} }"),
        // The layer before has no bias, because the bias's gradient would be 0.
        Images("batch_norm",
               "layers { conv2d { filters: 3 kernel: 3 no_bias: true } } layers { batch_norm { epsilon: 0.01 } } "
               "layers { relu {} }"),
        Images("batch_norm_first", "layers { batch_norm {} } " + std::string(kConv)),
        Example{"batch_norm_of_flat_values",
                "layers { dense { units: 6 no_bias: true } } layers { batch_norm { epsilon: 0.1 } } "
                "layers { dense { units: 3 } } loss { softmax_cross_entropy {} }"},
        Images("layer_norm", std::string(kConv) + "layers { layer_norm { epsilon: 0.01 } } layers { gelu {} }"),
        // 6 x 5 pixels.
        Images("layer_norm_of_as_many_channels_as_pixels",
               "layers { conv2d { filters: 30 kernel: 1 } } layers { layer_norm { epsilon: 0.1 } } layers { tanh {} }"),
        Example{"layer_norm_of_flat_values", Around("layers { layer_norm {} }")},
        Images("residual", std::string(kConv) + "layers { residual { " + kConv + "layers { tanh {} } } }"),
        Images("residual_of_the_features",
               "layers { residual { layers { conv2d { filters: 2 kernel: 1 } } layers { tanh {} } } }"),
        Images("residual_between_relus", std::string(kConv) + "layers { relu {} } layers { residual { " +
                                             "layers { relu {} } " + kConv +
                                             "layers { relu {} } } } layers { relu {} }"),
        Images("residual_with_a_projection",
               std::string(kConv) +
                   "layers { residual { layers { conv2d { filters: 4 kernel: 3 stride: 2 padding: 1 } } } }"),
        Images("residual_with_a_shortcut", std::string(kConv) +
                                               "layers { residual { layers { conv2d { filters: 2 kernel: [6, 5] } } " +
                                               "shortcut { average_pool {} } shortcut { dense { units: 2 } } } }"),
        Images("residual_in_a_residual", std::string(kConv) + "layers { residual { layers { residual { " + kConv +
                                             "} } " + kConv + "layers { residual { layers { residual { " + kConv +
                                             "} } } } } }"),
        Example{"residual_of_flat_values",
                Around("layers { residual { layers { gelu {} } layers { dense { units: 6 } } } }")}),
    [](const auto& info) { return info.param.name; });

using ModelTrainingTest = ModelFixture;

// Makes a step of plain SGD, like a server.
void Descend(Model& model, float learning_rate) {
  for (size_t p = 0; p < model.parameters().size(); ++p) {
    const absl::Span<float> value = model.HostParameter(p);
    const absl::Span<const float> gradient = model.HostGradient(p);
    for (size_t i = 0; i < value.size(); ++i) value[i] -= learning_rate * gradient[i];
  }
}

// The classes are inside and outside of a circle; no line separates them, so a single layer cannot learn them.
TEST_F(ModelTrainingTest, SmallNetworkLearnsACircle) {
  const std::unique_ptr<Model> model = CreateRandom(
      "layers { dense { units: 32 } } layers { relu {} } layers { dense { units: 2 } } "
      "loss { softmax_cross_entropy {} }",
      2, 0.7f);
  ASSERT_NE(model, nullptr);
  constexpr int64_t kBatch = 64;
  const auto draw = [&](std::vector<float>& features) {
    features = Random(2 * kBatch, 1.0f);
    std::vector<float> labels(kBatch);
    for (int64_t i = 0; i < kBatch; ++i) {
      const float x = features[2 * i], y = features[2 * i + 1];
      labels[i] = x * x + y * y < 0.6f ? 1.0f : 0.0f;
    }
    return labels;
  };
  std::vector<float> features;
  for (uint64_t step = 0; step < 2000; ++step) {
    const std::vector<float> labels = draw(features);
    ASSERT_TRUE(TrainOnce(*model, {features, labels, kBatch, step}).ok());
    Descend(*model, 0.5f);
  }
  int64_t correct = 0;
  for (int batch = 0; batch < 20; ++batch) {
    const std::vector<float> labels = draw(features);
    correct += model->Evaluate({features, labels, kBatch})->correct;
  }
  EXPECT_GE(correct, 20 * kBatch * 95 / 100);
}

TEST_F(ModelTrainingTest, LinearRegressionFindsTheLine) {
  const std::unique_ptr<Model> model = *Create("layers { dense { units: 1 } } loss { mean_squared_error {} }", 1);
  const std::vector<float> x = {-1, -0.5, 0, 0.5, 1};
  const std::vector<float> y = {-1, 0.5, 2, 3.5, 5};
  for (uint64_t step = 0; step < 500; ++step) {
    ASSERT_TRUE(TrainOnce(*model, {x, y, 5, step}).ok());
    Descend(*model, 0.1f);
  }
  EXPECT_NEAR(model->HostParameter(0)[0], 3.0f, 1e-4f);
  EXPECT_NEAR(model->HostParameter(1)[0], 2.0f, 1e-4f);
}

}  // namespace
}  // namespace ballast
