// SPDX-License-Identifier: Apache-2.0
// Tests models that recompute activations instead of keeping them.
#include <gmock/gmock.h>

#include <cmath>

#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr char kImages[] = "input { height: 6 width: 6 channels: 2 } loss { softmax_cross_entropy {} } ";

// RECOMPUTE marks the layers that a test may set to recompute.
constexpr char kChain[] =
    "layers { dense { units: 24 } RECOMPUTE } layers { relu {} RECOMPUTE } layers { dropout { rate: 0.4 } RECOMPUTE } "
    "layers { dense { units: 20 } } layers { gelu {} RECOMPUTE } layers { layer_norm {} } layers { tanh {} RECOMPUTE } "
    "layers { dropout { rate: 0.2 } RECOMPUTE } layers { dense { units: 5 } RECOMPUTE }";
constexpr char kConvolutions[] =
    "layers { conv2d { filters: 4 kernel: 3 padding: 1 } } layers { batch_norm {} RECOMPUTE } layers { relu {} "
    "RECOMPUTE } "
    "layers { residual { layers { conv2d { filters: 8 kernel: 3 stride: 2 padding: 1 } } layers { batch_norm {} } "
    "layers { tanh {} } layers { dropout { rate: 0.3 } } layers { conv2d { filters: 8 kernel: 3 padding: 1 } } } "
    "RECOMPUTE } layers { gelu {} RECOMPUTE } layers { max_pool { kernel: 2 } RECOMPUTE } layers { batch_norm {} } "
    "layers { gelu {} RECOMPUTE } layers { dense { units: 4 } }";

std::string With(const std::string& recompute, std::string text) {
  for (size_t at = text.find("RECOMPUTE"); at != std::string::npos; at = text.find("RECOMPUTE")) {
    text.replace(at, 9, recompute);
  }
  return kImages + text;
}

class ModelRecomputeTest : public ModelFixture, public ::testing::WithParamInterface<const char*> {
 protected:
  // Creates a model with parameters that depend only on its shapes.
  std::unique_ptr<Model> Make(const std::string& text, bool recompute) {
    v1::Model config;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
    absl::StatusOr<std::unique_ptr<Model>> model = Model::Create(
        config, {.features = 72, .seed = 7, .max_batch = 8, .recompute = recompute, .devices = {{"cpu", &device()}}});
    EXPECT_TRUE(model.ok()) << model.status();
    for (size_t i = 0; i < (*model)->parameters().size(); ++i) {
      std::vector<float> values((*model)->parameters()[i].elements);
      for (size_t j = 0; j < values.size(); ++j) values[j] = 0.3f * std::sin(1.0f + i + 7 * j);
      EXPECT_TRUE((*model)->SetParameter(i, values).ok());
    }
    return *std::move(model);
  }

  // Returns all gradients after each of two batches, then the loss of an evaluation, which uses running statistics.
  std::vector<float> Train(Model& model) {
    NoHooks hooks;
    std::vector<float> all;
    for (uint64_t step = 0; step < 2; ++step) {
      EXPECT_TRUE(
          model.Train({.features = features_, .labels = labels_, .examples = 8, .step = step, .seed = 3}, hooks).ok());
      for (size_t i = 0; i < model.parameters().size(); ++i) {
        const std::vector<float> gradient = Gradient(model, i);
        all.insert(all.end(), gradient.begin(), gradient.end());
      }
    }
    const absl::StatusOr<BatchResult> result =
        model.Evaluate({.features = features_, .labels = labels_, .examples = 8});
    EXPECT_TRUE(result.ok()) << result.status();
    all.push_back(result->loss_sum);
    return all;
  }

  const std::vector<float> features_ = Random(8 * 72, 1);
  const std::vector<float> labels_ = {0, 1, 2, 3, 3, 2, 1, 0};
};

TEST_P(ModelRecomputeTest, MarkedLayersGiveTheSameBitsFromLessMemory) {
  const std::unique_ptr<Model> kept = Make(With("", GetParam()), false);
  const std::unique_ptr<Model> again = Make(With("recompute: true", GetParam()), false);
  EXPECT_EQ(Train(*again), Train(*kept));
  EXPECT_LT(again->Memory().activations, kept->Memory().activations);
}

TEST_P(ModelRecomputeTest, AllLayersGiveTheSameBitsFromLessMemory) {
  const std::unique_ptr<Model> kept = Make(With("", GetParam()), false);
  const std::unique_ptr<Model> again = Make(With("", GetParam()), true);
  EXPECT_EQ(Train(*again), Train(*kept));
  EXPECT_LT(again->Memory().activations, kept->Memory().activations);
}

INSTANTIATE_TEST_SUITE_P(Models, ModelRecomputeTest, ::testing::Values(kChain, kConvolutions));

TEST_F(ModelRecomputeTest, MemoryTellsWhatAMarkedLayerSaves) {
  const std::string text =
      "layers { dense { units: 50 } } layers { gelu {} RECOMPUTE } "
      "layers { dense { units: 50 } } layers { gelu {} RECOMPUTE } layers { dense { units: 4 } }";
  // The output of the second gelu has no place of its own.
  EXPECT_EQ(Make(With("", text), false)->Memory().activations -
                Make(With("recompute: true", text), false)->Memory().activations,
            8 * 50 * 4);
}

TEST_F(ModelRecomputeTest, ShortageTellsOfRecomputation) {
  std::string text = "loss { softmax_cross_entropy {} } ";
  for (int i = 0; i < 16; ++i) text += "layers { gelu {} } ";
  v1::Model config;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text + "layers { dense { units: 2 } }", &config));
  const std::unique_ptr<Device> little = CreateCpuDevice(1, 1 << 16);
  ModelOptions options{.features = 100, .max_batch = 10, .devices = {{"cpu", little.get()}}};
  const absl::Status status = Model::Create(config, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("; or training.recompute: true, with which this batch needs "));
  options.recompute = true;
  EXPECT_TRUE(Model::Create(config, options).ok());
}

}  // namespace
}  // namespace ballast
