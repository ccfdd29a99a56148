// SPDX-License-Identifier: Apache-2.0
#include "worker/training/initial_weights.h"

#include <gmock/gmock.h>

#include <cmath>

#include "worker/model/model_fixture.h"
#include "worker/training/parameter_exchange.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A model of two layers with a batch norm between them, and a file at path_.
class InitialWeightsTest : public ModelFixture {
 protected:
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<float> values;
  };

  absl::StatusOr<InitialWeights> Load(const std::vector<Tensor>& tensors, std::vector<std::string> freeze = {}) {
    std::vector<TensorView> views;
    for (const Tensor& tensor : tensors) views.push_back({tensor.name, tensor.shape, tensor.values});
    EXPECT_TRUE(WriteSafetensors(path_, views, {}).ok());
    model_ =
        Model::Create(ParseModel("layers { dense { units: 1 no_bias: true } } layers { batch_norm {} } "
                                 "layers { dense { units: 1 } } loss { mean_squared_error {} }"),
                      {.features = 2, .max_batch = 4, .freeze = std::move(freeze), .devices = {{"cpu", &device()}}})
            .value();
    return LoadInitialWeights(path_, *model_);
  }

  void ExpectRefused(const std::vector<Tensor>& tensors, std::vector<std::string> freeze, const std::string& why) {
    const absl::Status status = Load(tensors, std::move(freeze)).status();
    EXPECT_EQ(status, absl::InvalidArgumentError("init_from: " + path_ + ": " + why));
  }

  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const Tensor kFirst = {"dense1/weight", {1, 2}, {3, 4}};
  const Tensor kMean = {"batch_norm1/running_mean", {1}, {7}};
  const Tensor kOther = {"dense3/weight", {1}, {9}};
  const std::string path_ = ::testing::TempDir() + "/initial.safetensors";
  std::unique_ptr<Model> model_;
};

TEST_F(InitialWeightsTest, LoadsTensorsByNameAndCountsTheOthers) {
  const absl::StatusOr<InitialWeights> initial = Load({kFirst, kMean, kOther});
  ASSERT_TRUE(initial.ok()) << initial.status();
  EXPECT_THAT(initial->provided, ElementsAre(0));
  EXPECT_THAT(model_->HostParameter(0), ElementsAre(3, 4));
  EXPECT_THAT(model_->Statistics()->at(0).values, ElementsAre(7));
  EXPECT_EQ(
      initial->report,
      "init_from " + path_ +
          ": 2 tensors loaded, 0 of them frozen; 5 initialized as usual: batch_norm1/scale, "
          "batch_norm1/offset, dense2/weight, dense2/bias, batch_norm1/running_variance; 1 not used: dense3/weight");
}

TEST_F(InitialWeightsTest, FrozenParametersAreLoadedButNotProvidedToServers) {
  const absl::StatusOr<InitialWeights> initial = Load({kFirst}, {"dense1"});
  ASSERT_TRUE(initial.ok()) << initial.status();
  EXPECT_THAT(initial->provided, IsEmpty());
  EXPECT_THAT(model_->HostParameter(0), ElementsAre(3, 4));
  EXPECT_THAT(initial->report, HasSubstr("1 tensors loaded, 1 of them frozen; 6 initialized"));
  for (const v1::TensorSpec& spec : ParameterExchange::Specs(*model_, v1::Job(), v1::Optimizer())) {
    EXPECT_NE(spec.name(), "dense1/weight");
  }
}

TEST_F(InitialWeightsTest, OnlyTensorsFromTheFileAreDeclaredAsProvided) {
  const absl::StatusOr<InitialWeights> initial = Load({kFirst});
  ASSERT_TRUE(initial.ok()) << initial.status();
  const auto specs = ParameterExchange::Specs(*model_, v1::Job(), v1::Optimizer(), initial->provided);
  ASSERT_EQ(specs.size(), 5);
  EXPECT_TRUE(specs[0].initializer().has_provided());
  EXPECT_FALSE(specs[3].initializer().has_provided());
  EXPECT_EQ(specs[3].name(), "dense2/weight");
  EXPECT_EQ(specs[3].id(), 3);
}

TEST_F(InitialWeightsTest, TheChecksumFollowsNamesAndValues) {
  const uint64_t first = Load({kFirst, kOther})->checksum;
  EXPECT_EQ(Load({kFirst, kOther})->checksum, first);
  EXPECT_NE(Load({kFirst})->checksum, first);
  EXPECT_NE(Load({kFirst, {"dense3/weight", {1}, {8}}})->checksum, first);
  EXPECT_NE(Load({kFirst, {"dense4/weight", {1}, {9}}})->checksum, first);
}

TEST_F(InitialWeightsTest, RefusesAFileThatDoesNotFit) {
  ExpectRefused({{"dense1/weight", {2, 1}, {3, 4}}}, {}, "tensor \"dense1/weight\" has shape [2, 1], want [1, 2]");
  ExpectRefused({{"dense1/weight", {1, 2}, {3, kNan}}}, {},
                "tensor \"dense1/weight\": element 1 is nan, want a finite number");
  ExpectRefused({kFirst, {"batch_norm1/running_mean", {2}, {1, 2}}}, {},
                "tensor \"batch_norm1/running_mean\" has shape [2], want [1]");
  ExpectRefused({kFirst, {"dense2/weight", {1, 1}, {1}}}, {"dense2"}, "lacks \"dense2/bias\" of a layer to freeze");
  ExpectRefused({kOther}, {},
                "has none of the model's tensors (dense1/weight, batch_norm1/scale, batch_norm1/offset, "
                "dense2/weight, dense2/bias and 2 more), but dense3/weight");
}

TEST_F(InitialWeightsTest, NamesAFileThatIsMissingOrDamaged) {
  ASSERT_TRUE(Load({kFirst}).ok());
  const absl::Status missing = LoadInitialWeights("/nowhere/model.safetensors", *model_).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("init_from: /nowhere/model.safetensors"));
  const absl::Status folder = LoadInitialWeights("/", *model_).status();
  EXPECT_THAT(std::string(folder.message()), EndsWith("not a regular file"));
}

}  // namespace
}  // namespace ballast
