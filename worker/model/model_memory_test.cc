// SPDX-License-Identifier: Apache-2.0
// Tests how a model reports its memory, on a CPU device with little memory.
#include <gmock/gmock.h>

#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiven = 1 << 20;

class ModelMemoryTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Model>> Create(const std::string& text, int64_t features, int64_t batch) {
    v1::Model config;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
    return Model::Create(config, features, 1, batch, device_.get());
  }

  const std::unique_ptr<Device> device_ = CreateCpuDevice(1, kGiven);
};

class ModelMemorySumTest : public ModelMemoryTest, public ::testing::WithParamInterface<std::string> {};

// A model reports exactly the memory that it allocated, regardless of what its layers share and keep.
TEST_P(ModelMemorySumTest, AddsUpToWhatTheDeviceGave) {
  for (const int64_t batch : {1, 16}) {
    const absl::StatusOr<std::unique_ptr<Model>> model = Create(GetParam(), 64, batch);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->Memory().total(), kGiven - device_->Memory().free) << "batch " << batch;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, ModelMemorySumTest,
    ::testing::Values("layers { dense { units: 8 } } layers { relu {} } layers { dropout { rate: 0.5 } } "
                      "layers { dense { units: 2 } } loss { softmax_cross_entropy {} }",
                      "layers { dense { units: 64 } } layers { tanh {} } layers { gelu {} } "
                      "layers { dense { units: 1 no_bias: true } } loss { mean_squared_error {} }"));

TEST_F(ModelMemoryTest, TellsItByUse) {
  const absl::StatusOr<std::unique_ptr<Model>> model =
      Create("layers { dense { units: 8 } } loss { softmax_cross_entropy {} }", 64, 10);
  ASSERT_TRUE(model.ok()) << model.status();
  const MemoryBytes memory = (*model)->Memory();
  EXPECT_EQ(memory.weights, (64 * 8 + 8) * 4);
  EXPECT_EQ(memory.gradients, (64 * 8 + 8) * 4);
  // Each example has features, outputs, their gradient and a label; the loss has two totals.
  EXPECT_EQ(memory.activations, (10 * (64 + 8 + 8 + 1) + 2) * 4);
}

TEST_F(ModelMemoryTest, ShortageSaysWhatIsAskedForWhatIsFreeAndWhichBatchFits) {
  constexpr char kText[] = "layers { dense { units: 8 } } loss { softmax_cross_entropy {} }";
  const absl::Status status = Create(kText, 64, 10000).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("softmax cross-entropy, 520 parameters at batch 10000 needs 3.1 MiB: weights 2.0 KiB, "
                                 "gradients 2.0 KiB, activations 3.1 MiB; free: 1.0 MiB. Want training.batch_size of "
                                 "at most 3223 (2500 with accumulate_batches times 4 keeps the examples per step)"));
  // A failed Create frees everything that it allocated.
  EXPECT_EQ(device_->Memory().free, kGiven);
  EXPECT_FALSE(Create(kText, 64, 3224).ok());
  EXPECT_TRUE(Create(kText, 64, 3223).ok());
}

TEST_F(ModelMemoryTest, ModelWhoseWeightsAloneAreTooMuchIsToldSo) {
  const absl::Status status =
      Create("layers { dense { units: 4096 } } loss { softmax_cross_entropy {} }", 64, 10).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("Not even a batch of 1 fits, which needs 2.1 MiB: want a smaller "
                        "model, or a device with more memory"));
}

}  // namespace
}  // namespace ballast
