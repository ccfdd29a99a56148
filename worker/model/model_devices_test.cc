// SPDX-License-Identifier: Apache-2.0
// Tests models whose layers are on several devices.
#include <gmock/gmock.h>

#include <cmath>

#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr char kLoss[] = "input { height: 4 width: 4 channels: 3 } loss { softmax_cross_entropy {} } ";

// ELSEWHERE and BACK mark the layers that a test may place on another device.
constexpr char kChain[] =
    "layers { dense { units: 24 } } layers { relu {} ELSEWHERE } layers { dropout { rate: 0.4 } } "
    "layers { dense { units: 20 } } layers { gelu {} BACK } layers { dropout { rate: 0.2 } } "
    "layers { dense { units: 5 } ELSEWHERE }";
constexpr char kResiduals[] =
    "layers { conv2d { filters: 4 kernel: 3 padding: 1 } } layers { batch_norm {} } "
    "layers { residual { layers { tanh {} ELSEWHERE } layers { conv2d { filters: 4 kernel: 3 padding: 1 } } } } "
    "layers { residual { layers { conv2d { filters: 8 kernel: 3 stride: 2 padding: 1 } BACK } layers { batch_norm {} } "
    "layers { dropout { rate: 0.3 } } } ELSEWHERE } "
    "layers { residual { layers { gelu {} BACK } } } layers { dense { units: 4 } ELSEWHERE }";
constexpr char kAllElsewhere[] =
    "layers { dense { units: 6 } ELSEWHERE } layers { tanh {} } layers { dense { units: 3 } }";

std::string With(bool several, std::string text) {
  for (const auto& [word, device] : {std::pair<std::string, std::string>("ELSEWHERE", "device: \"1\""),
                                     std::pair<std::string, std::string>("BACK", "device: \"cpu\"")}) {
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word)) {
      text.replace(at, word.size(), several ? device : "");
    }
  }
  return kLoss + text;
}

class ModelDevicesTest : public ModelFixture, public ::testing::WithParamInterface<const char*> {
 protected:
  absl::StatusOr<std::unique_ptr<Model>> Make(const std::string& text, bool recompute = false) {
    v1::Model config;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
    absl::StatusOr<std::unique_ptr<Model>> model =
        Model::Create(config, {.features = 48,
                               .seed = 7,
                               .max_batch = 8,
                               .recompute = recompute,
                               .devices = {{"cpu", &device()}, {"1", other_.get()}}});
    for (size_t i = 0; model.ok() && i < (*model)->parameters().size(); ++i) {
      std::vector<float> values((*model)->parameters()[i].elements);
      for (size_t j = 0; j < values.size(); ++j) values[j] = 0.3f * std::sin(1.0f + i + 7 * j);
      EXPECT_TRUE((*model)->SetParameter(i, values).ok());
    }
    return model;
  }

  // Returns all gradients after each of two batches, then the loss of an evaluation.
  std::vector<float> Train(Model& model) {
    NoHooks hooks;
    std::vector<float> all;
    for (uint64_t step = 0; step < 2; ++step) {
      EXPECT_TRUE(
          model.Train({.features = features_, .labels = labels_, .examples = 6, .step = step, .seed = 3}, hooks).ok());
      for (size_t i = 0; i < model.parameters().size(); ++i) {
        const std::vector<float> gradient = Gradient(model, i);
        all.insert(all.end(), gradient.begin(), gradient.end());
      }
    }
    const absl::StatusOr<BatchResult> result =
        model.Evaluate({.features = features_, .labels = labels_, .examples = 6});
    EXPECT_TRUE(result.ok()) << result.status();
    all.push_back(result->loss_sum);
    return all;
  }

  const std::unique_ptr<Device> other_ = CreateCpuDevice(1, int64_t{1} << 20);
  const std::vector<float> features_ = Random(6 * 48, 1);
  const std::vector<float> labels_ = {0, 1, 2, 2, 1, 0};
};

TEST_P(ModelDevicesTest, TwoDevicesGiveTheSameBitsAsOne) {
  const absl::StatusOr<std::unique_ptr<Model>> one = Make(With(false, GetParam()));
  const absl::StatusOr<std::unique_ptr<Model>> two = Make(With(true, GetParam()));
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  EXPECT_EQ(Train(**two), Train(**one));
}

TEST_P(ModelDevicesTest, TwoDevicesGiveTheSameBitsWhereActivationsAreComputedAgain) {
  const absl::StatusOr<std::unique_ptr<Model>> one = Make(With(false, GetParam()));
  const absl::StatusOr<std::unique_ptr<Model>> two = Make(With(true, GetParam()), /*recompute=*/true);
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  EXPECT_EQ(Train(**two), Train(**one));
}

INSTANTIATE_TEST_SUITE_P(Models, ModelDevicesTest, ::testing::Values(kChain, kResiduals, kAllElsewhere));

TEST_F(ModelDevicesTest, LayersTakeTheirOwnDevicesMemory) {
  const int64_t own = device().Memory().free, other = other_->Memory().free;
  const absl::StatusOr<std::unique_ptr<Model>> model = Make(With(true, kAllElsewhere));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(device().Memory().free, own);
  EXPECT_EQ(other - other_->Memory().free, (*model)->Memory().total());
}

TEST_F(ModelDevicesTest, MemoryIsTheSumOverTheDevices) {
  const int64_t own = device().Memory().free, other = other_->Memory().free;
  const absl::StatusOr<std::unique_ptr<Model>> model = Make(With(true, kResiduals));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(own - device().Memory().free + other - other_->Memory().free, (*model)->Memory().total());
}

TEST_F(ModelDevicesTest, UnknownDeviceIsRefusedWithTheLayersName) {
  const absl::Status status =
      Make(std::string(kLoss) + "layers { dense { units: 6 } } layers { tanh {} device: \"2\" }").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "layer \"tanh1\": device is \"2\", want cpu or 1: this worker has no other");
}

TEST_F(ModelDevicesTest, ShortageNamesTheDevice) {
  const absl::Status status =
      Make(std::string(kLoss) + "layers { dense { units: 60 } } layers { dense { units: 9000 } device: \"1\" }")
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("free: 1.0 MiB"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("(device 1: cpu device: got 540000 floats to allocate"));
}

}  // namespace
}  // namespace ballast
