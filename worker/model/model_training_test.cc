// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

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
  const std::unique_ptr<Model> model = CreateRandom(R"pb(
                                                      layers { dense { units: 32 } }
                                                      layers { relu {} }
                                                      layers { dense { units: 2 } }
                                                      loss { softmax_cross_entropy {} })pb",
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
  NoHooks hooks;
  std::vector<float> features;
  for (uint64_t step = 0; step < 2000; ++step) {
    const std::vector<float> labels = draw(features);
    ASSERT_TRUE(model->Train({features, labels, kBatch, step}, hooks).ok());
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
  NoHooks hooks;
  for (uint64_t step = 0; step < 500; ++step) {
    ASSERT_TRUE(model->Train({x, y, 5, step}, hooks).ok());
    Descend(*model, 0.1f);
  }
  EXPECT_NEAR(model->HostParameter(0)[0], 3.0f, 1e-4f);
  EXPECT_NEAR(model->HostParameter(1)[0], 2.0f, 1e-4f);
}

}  // namespace
}  // namespace ballast
