// SPDX-License-Identifier: Apache-2.0
// Tests of layers that keep their parameters, and of models that predict.
#include <gmock/gmock.h>

#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::Pointwise;

class FrozenModelTest : public ModelFixture {
 protected:
  absl::StatusOr<std::unique_ptr<Model>> CreateFrozen(const std::string& text, std::vector<std::string> freeze) {
    return Model::Create(
        ParseModel(text),
        {.features = 2, .max_batch = kMaxBatch, .freeze = std::move(freeze), .devices = {{"cpu", &device()}}});
  }
};

// Records the groups for which hooks are called.
class GroupHooks : public NoHooks {
 public:
  absl::Status BeforeForward(size_t group) override {
    before.push_back(group);
    return absl::OkStatus();
  }
  absl::Status GradientReady(size_t group) override {
    ready.push_back(group);
    return absl::OkStatus();
  }
  std::vector<size_t> before, ready;
};

constexpr char kThreeLayers[] =
    "layers { dense { units: 3 } } layers { tanh {} } layers { dense { units: 3 } } layers { tanh {} } "
    "layers { name: 'last' dense { units: 1 } } loss { mean_squared_error {} }";
constexpr char kResidual[] =
    "layers { name: 'block' residual { layers { dense { units: 4 } } } } layers { dense { units: 1 } } "
    "loss { mean_squared_error {} }";

TEST_F(FrozenModelTest, AFrozenLayerHasParametersButNoGroup) {
  const auto model = CreateFrozen(kThreeLayers, {"dense2"});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->parameters().size(), 6);
  ASSERT_EQ((*model)->parameter_groups().size(), 2);
  EXPECT_EQ((*model)->parameter_groups()[1].first, 4);
  SetParameters(**model);
  GroupHooks hooks;
  ASSERT_TRUE((*model)->Train({.features = {1, 2}, .labels = {3}, .examples = 1}, hooks).ok());
  EXPECT_THAT(hooks.before, ElementsAre(0, 1));
  EXPECT_THAT(hooks.ready, ElementsAre(1, 0));
  EXPECT_THAT((*model)->Describe(), testing::HasSubstr("25 parameters, 12 of them frozen"));
}

TEST_F(FrozenModelTest, OtherLayersHaveTheSameGradientsAsWithoutFreezing) {
  const auto whole = CreateFrozen(kThreeLayers, {}), frozen = CreateFrozen(kThreeLayers, {"dense2"});
  ASSERT_TRUE(whole.ok() && frozen.ok());
  for (Model* model : {whole->get(), frozen->get()}) {
    SetParameters(*model);
    ASSERT_TRUE(TrainOnce(*model, {.features = {1, 2}, .labels = {3}, .examples = 1}).ok());
  }
  for (size_t index : {0, 1, 4, 5}) EXPECT_EQ(Gradient(**frozen, index), Gradient(**whole, index)) << index;
}

TEST_F(FrozenModelTest, BackwardEndsAtTheFirstLayerThatTrains) {
  const auto model = CreateFrozen(kThreeLayers, {"dense1", "dense2"});
  ASSERT_TRUE(model.ok()) << model.status();
  SetParameters(**model);
  ASSERT_TRUE(TrainOnce(**model, {.features = {1, 2}, .labels = {3}, .examples = 1}).ok());
  EXPECT_THAT(Gradient(**model, 0), Each(0));
  EXPECT_THAT(Gradient(**model, 2), Each(0));
  EXPECT_NE(Gradient(**model, 5)[0], 0);
}

TEST_F(FrozenModelTest, AResidualStandsForTheLayersInIt) {
  const auto model = CreateFrozen(kResidual, {"block"});
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ((*model)->parameter_groups().size(), 1);
  EXPECT_EQ((*model)->parameters()[(*model)->parameter_groups()[0].first].name, "dense2/weight");
  EXPECT_TRUE(CreateFrozen(kResidual, {"block", "dense1"}).ok());
}

TEST_F(FrozenModelTest, RefusesToFreezeEverythingOrWhatIsNotThere) {
  EXPECT_EQ(CreateFrozen(kResidual, {"block", "dense2"}).status(),
            absl::InvalidArgumentError("freeze: got all layers that have parameters, so there is nothing to train"));
  EXPECT_EQ(CreateFrozen(kResidual, {"dense9"}).status(),
            absl::InvalidArgumentError("freeze: got \"dense9\", want the name of a layer"));
}

class OutputsTest : public ModelFixture {
 protected:
  // Evaluates examples with the label 0.
  static absl::Status Outputs(Model& model, const std::vector<float>& features, int64_t examples,
                              absl::Span<float> outputs) {
    const std::vector<float> labels(examples);
    return model.Evaluate({.features = features, .labels = labels, .examples = examples}, outputs).status();
  }
};

TEST_F(OutputsTest, GivesTheOutputsOfTheLastLayer) {
  const auto model = Create("layers { dense { units: 2 } } loss { softmax_cross_entropy {} }", 2);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE((*model)->SetParameter(0, {1, 2, 3, 4}).ok());
  ASSERT_TRUE((*model)->SetParameter(1, {10, 20}).ok());
  EXPECT_EQ((*model)->outputs(), 2);
  std::vector<float> outputs(4);
  ASSERT_TRUE(Outputs(**model, {1, 0, 1, 1}, 2, absl::MakeSpan(outputs)).ok());
  EXPECT_THAT(outputs, ElementsAre(11, 23, 13, 27));
  EXPECT_EQ(Outputs(**model, {1, 0}, 1, absl::MakeSpan(outputs)).message(),
            "evaluation of 1 examples: got memory for 4 outputs, want 2");
  EXPECT_EQ(Outputs(**model, {1, 0, 1}, 1, absl::MakeSpan(outputs).first(2)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(OutputsTest, UsesTheStatisticsThatWereSetAndNoDropout) {
  const auto model = Create(
      "layers { batch_norm { epsilon: 1 } } layers { dropout { rate: 0.9 } } layers { dense { units: 1 no_bias: true } "
      "} "
      "loss { mean_squared_error {} }",
      2);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE((*model)->SetParameter(0, {1, 1}).ok());
  ASSERT_TRUE((*model)->SetParameter(2, {1, 10}).ok());
  ASSERT_TRUE((*model)->SetStatistic("batch_norm1/running_mean", {1, 2}).ok());
  ASSERT_TRUE((*model)->SetStatistic("batch_norm1/running_variance", {3, 8}).ok());
  std::vector<float> outputs(1);
  ASSERT_TRUE(Outputs(**model, {5, 8}, 1, absl::MakeSpan(outputs)).ok());
  EXPECT_THAT(outputs, Pointwise(FloatNear(1e-5), {2 + 10 * 2}));
  EXPECT_EQ((*model)->SetStatistic("batch_norm1/running_mean", {1}).message(),
            "statistic \"batch_norm1/running_mean\": got 1 elements, want 2");
  EXPECT_EQ((*model)->SetStatistic("batch_norm2/running_mean", {1, 2}).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ballast
