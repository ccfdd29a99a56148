// SPDX-License-Identifier: Apache-2.0
// Holds the model's loss and gradients to central differences of a float64 network that is written here from the
// formulas in job.proto.
#include <cmath>
#include <vector>

#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

constexpr int64_t kExamples = 5;
constexpr int64_t kFeatures = 7;

using Values = std::vector<double>;

struct Example {
  std::string name;
  std::string model;
};

class ModelGradientTest : public ModelFixture, public ::testing::WithParamInterface<Example> {
 protected:
  // The mean loss of the batch under the given weights; `masks` is what each dropout multiplies by.
  double MeanLoss(const v1::Model& config, const std::vector<Values>& weights) const {
    Values x(features_.begin(), features_.end());
    size_t weight = 0;
    for (int i = 0; i < config.layers_size(); ++i) {
      const v1::Layer& layer = config.layers(i);
      if (layer.has_dense()) {
        const Values& w = weights[weight++];
        x = Dense(x, w, layer.dense().units());
        if (!layer.dense().no_bias()) {
          const Values& b = weights[weight++];
          for (size_t j = 0; j < x.size(); ++j) x[j] += b[j % b.size()];
        }
      }
      for (size_t j = 0; j < x.size(); ++j) {
        if (layer.has_relu()) x[j] = std::max(x[j], 0.0);
        if (layer.has_tanh()) x[j] = std::tanh(x[j]);
        if (layer.has_gelu()) x[j] *= 0.5 * (1 + std::erf(x[j] / std::sqrt(2.0)));
        if (layer.has_dropout()) x[j] *= mask_[j];
      }
    }
    return config.loss().has_mean_squared_error() ? SquaredError(x) : CrossEntropy(x);
  }

  std::vector<float> features_ = Random(kExamples * kFeatures, 1.0f);
  std::vector<float> labels_;
  // What a dropout multiplies its input by; the models here have one at most.
  Values mask_;

 private:
  static Values Dense(const Values& x, const Values& w, int64_t units) {
    const size_t inputs = w.size() / units;
    Values y(kExamples * units);
    for (size_t i = 0; i < y.size(); ++i) {
      for (size_t j = 0; j < inputs; ++j) {
        y[i] += x[i / units * inputs + j] * w[i % units * inputs + j];
      }
    }
    return y;
  }

  double SquaredError(const Values& x) const {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += (x[i] - labels_[i]) * (x[i] - labels_[i]);
    return sum / kExamples;
  }

  double CrossEntropy(const Values& x) const {
    const size_t classes = x.size() / kExamples;
    double sum = 0;
    for (int64_t i = 0; i < kExamples; ++i) {
      double total = 0;
      for (size_t j = 0; j < classes; ++j) total += std::exp(x[i * classes + j]);
      sum += std::log(total) - x[i * classes + static_cast<size_t>(labels_[i])];
    }
    return sum / kExamples;
  }
};

TEST_P(ModelGradientTest, AgreesWithDifferencesInDoublePrecision) {
  const std::unique_ptr<Model> model = CreateRandom(GetParam().model, kFeatures, 1.0f);
  ASSERT_NE(model, nullptr);
  v1::Model config;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(GetParam().model, &config));
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
  EXPECT_NEAR(result->loss_sum / kExamples, MeanLoss(config, weights), 1e-5);

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
    // Else the comparison proves nothing.
    EXPECT_GT(largest, 1e-3) << model->parameters()[p].name;
  }
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
                              "layers { dense { units: 3 } } layers { tanh {} } loss { "
                              "softmax_cross_entropy {} }"},
                      Example{"mean_squared_error",
                              "layers { dense { units: 6 } } layers { gelu {} } layers { "
                              "dense { units: 1 } } loss { mean_squared_error {} }"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ballast
