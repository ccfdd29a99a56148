// SPDX-License-Identifier: Apache-2.0
// Tests where a model's values are: on several devices, recomputed instead of kept, and in little memory.
#include <gmock/gmock.h>

#include "absl/strings/str_replace.h"
#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiven = 1 << 20;
constexpr char kImages[] = "input { height: 6 width: 6 channels: 2 } loss { softmax_cross_entropy {} } ";

// Replaces the marks ELSEWHERE and BACK by another device, if there are several, and RECOMPUTE by `recompute`.
std::string With(bool several, const std::string& recompute, const std::string& text) {
  return kImages + absl::StrReplaceAll(text, {{"ELSEWHERE", several ? "device: \"1\"" : ""},
                                              {"BACK", several ? "device: \"cpu\"" : ""},
                                              {"RECOMPUTE", recompute}});
}

// Models on the CPU device "cpu" and on a device "1", which has little memory.
class ModelPlacesTest : public ModelFixture, public ::testing::WithParamInterface<const char*> {
 protected:
  absl::StatusOr<std::unique_ptr<Model>> TryMake(const std::string& text, bool recompute = false) {
    absl::StatusOr<std::unique_ptr<Model>> model =
        Model::Create(ParseModel(text), {.features = 72,
                                         .seed = 7,
                                         .max_batch = 8,
                                         .recompute = recompute,
                                         .devices = {{"cpu", &device()}, {"1", little_.get()}}});
    if (model.ok()) SetParameters(**model);
    return model;
  }

  std::unique_ptr<Model> Make(const std::string& text, bool recompute = false) {
    absl::StatusOr<std::unique_ptr<Model>> model = TryMake(text, recompute);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  // Returns all gradients after each of two batches, then the loss of an evaluation, which uses running statistics.
  std::vector<float> Train(Model& model) {
    NoHooks hooks;
    std::vector<float> all;
    BatchView batch{.features = features_, .labels = labels_, .examples = 6, .seed = 3};
    for (; batch.step < 2; ++batch.step) {
      EXPECT_TRUE(model.Train(batch, hooks).ok());
      const std::vector<float> gradients = Gradients(model);
      all.insert(all.end(), gradients.begin(), gradients.end());
    }
    const absl::StatusOr<BatchResult> result = model.Evaluate(batch);
    EXPECT_TRUE(result.ok()) << result.status();
    all.push_back(result->loss_sum);
    return all;
  }

  const std::unique_ptr<Device> little_ = CreateCpuDevice(1, kGiven);
  const std::vector<float> features_ = Random(6 * 72, 1);
  const std::vector<float> labels_ = {0, 1, 2, 2, 1, 0};
};

class ModelDevicesTest : public ModelPlacesTest {};

constexpr char kAllElsewhere[] =
    "layers { dense { units: 6 } ELSEWHERE } layers { tanh {} } layers { dense { units: 3 } }";
constexpr char kResiduals[] =
    "layers { conv2d { filters: 4 kernel: 3 padding: 1 } } layers { batch_norm {} } "
    "layers { residual { layers { tanh {} ELSEWHERE } layers { conv2d { filters: 4 kernel: 3 padding: 1 } } } } "
    "layers { residual { layers { conv2d { filters: 8 kernel: 3 stride: 2 padding: 1 } BACK } layers { batch_norm {} } "
    "layers { dropout { rate: 0.3 } } } ELSEWHERE } "
    "layers { residual { layers { gelu {} BACK } } } layers { dense { units: 4 } ELSEWHERE }";

TEST_P(ModelDevicesTest, TwoDevicesGiveTheSameBitsAsOne) {
  const std::unique_ptr<Model> one = Make(With(false, "", GetParam()));
  const std::unique_ptr<Model> two = Make(With(true, "", GetParam()));
  EXPECT_EQ(Train(*two), Train(*one));
}

TEST_P(ModelDevicesTest, TwoDevicesGiveTheSameBitsWhereActivationsAreComputedAgain) {
  const std::unique_ptr<Model> one = Make(With(false, "", GetParam()));
  const std::unique_ptr<Model> two = Make(With(true, "", GetParam()), /*recompute=*/true);
  EXPECT_EQ(Train(*two), Train(*one));
}

INSTANTIATE_TEST_SUITE_P(
    Models, ModelDevicesTest,
    ::testing::Values("layers { dense { units: 24 } } layers { relu {} ELSEWHERE } layers { dropout { rate: 0.4 } } "
                      "layers { dense { units: 20 } } layers { gelu {} BACK } layers { dropout { rate: 0.2 } } "
                      "layers { dense { units: 5 } ELSEWHERE }",
                      kResiduals, kAllElsewhere));

TEST_F(ModelDevicesTest, LayersTakeTheirOwnDevicesMemory) {
  const int64_t own = device().Memory().free;
  const std::unique_ptr<Model> model = Make(With(true, "", kAllElsewhere));
  EXPECT_EQ(device().Memory().free, own);
  EXPECT_EQ(kGiven - little_->Memory().free, model->Memory().total());
}

TEST_F(ModelDevicesTest, MemoryIsTheSumOverTheDevices) {
  const int64_t own = device().Memory().free;
  const std::unique_ptr<Model> model = Make(With(true, "", kResiduals));
  EXPECT_EQ(own - device().Memory().free + kGiven - little_->Memory().free, model->Memory().total());
}

TEST_F(ModelDevicesTest, UnknownDeviceIsRefusedWithTheLayersName) {
  const absl::Status status =
      TryMake(std::string(kImages) + "layers { dense { units: 6 } } layers { tanh {} device: \"2\" }").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "layer \"tanh1\": device is \"2\", want cpu or 1: this worker has no other");
}

TEST_F(ModelDevicesTest, ShortageNamesTheDevice) {
  const absl::Status status =
      TryMake(std::string(kImages) + "layers { dense { units: 60 } } layers { dense { units: 9000 } device: \"1\" }")
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("free: 1.0 MiB"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("(device 1: cpu device: got 540000 floats to allocate"));
}

class ModelRecomputeTest : public ModelPlacesTest {
 protected:
  // Compares a model with one that recomputes its marked layers, or all.
  void ExpectSameBitsFromLessMemory(const std::string& mark, bool all) {
    const std::unique_ptr<Model> kept = Make(With(false, "", GetParam()));
    const std::unique_ptr<Model> again = Make(With(false, mark, GetParam()), all);
    EXPECT_EQ(Train(*again), Train(*kept));
    EXPECT_LT(again->Memory().activations, kept->Memory().activations);
  }
};

TEST_P(ModelRecomputeTest, MarkedLayersGiveTheSameBitsFromLessMemory) {
  ExpectSameBitsFromLessMemory("recompute: true", false);
}

TEST_P(ModelRecomputeTest, AllLayersGiveTheSameBitsFromLessMemory) { ExpectSameBitsFromLessMemory("", true); }

INSTANTIATE_TEST_SUITE_P(
    Models, ModelRecomputeTest,
    ::testing::Values(
        "layers { dense { units: 24 } RECOMPUTE } layers { relu {} RECOMPUTE } "
        "layers { dropout { rate: 0.4 } RECOMPUTE } "
        "layers { dense { units: 20 } } layers { gelu {} RECOMPUTE } layers { layer_norm {} } "
        "layers { tanh {} RECOMPUTE } "
        "layers { dropout { rate: 0.2 } RECOMPUTE } layers { dense { units: 5 } RECOMPUTE }",
        "layers { conv2d { filters: 4 kernel: 3 padding: 1 } } layers { batch_norm {} RECOMPUTE } "
        "layers { relu {} RECOMPUTE } layers { residual { "
        "layers { conv2d { filters: 8 kernel: 3 stride: 2 padding: 1 } } layers { batch_norm {} } layers { tanh {} } "
        "layers { dropout { rate: 0.3 } } layers { conv2d { filters: 8 kernel: 3 padding: 1 } } } RECOMPUTE } "
        "layers { gelu {} RECOMPUTE } layers { max_pool { kernel: 2 } RECOMPUTE } layers { batch_norm {} } "
        "layers { gelu {} RECOMPUTE } layers { dense { units: 4 } }"));

TEST_F(ModelRecomputeTest, MemoryTellsWhatAMarkedLayerSaves) {
  const std::string text =
      "layers { dense { units: 50 } } layers { gelu {} RECOMPUTE } "
      "layers { dense { units: 50 } } layers { gelu {} RECOMPUTE } layers { dense { units: 4 } }";
  const std::unique_ptr<Model> kept = Make(With(false, "", text));
  const std::unique_ptr<Model> again = Make(With(false, "recompute: true", text));
  // The output of the second gelu has no place of its own.
  EXPECT_EQ(kept->Memory().activations - again->Memory().activations, 8 * 50 * 4);
}

TEST_F(ModelRecomputeTest, ShortageTellsOfRecomputation) {
  std::string text = "loss { softmax_cross_entropy {} } ";
  for (int i = 0; i < 16; ++i) text += "layers { gelu {} } ";
  const v1::Model config = ParseModel(text + "layers { dense { units: 2 } }");
  const std::unique_ptr<Device> least = CreateCpuDevice(1, 1 << 16);
  ModelOptions options{.features = 100, .max_batch = 10, .devices = {{"cpu", least.get()}}};
  const absl::Status status = Model::Create(config, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("; or training.recompute: true, with which this batch needs "));
  options.recompute = true;
  EXPECT_TRUE(Model::Create(config, options).ok());
}

class ModelMemoryTest : public ModelPlacesTest {
 protected:
  absl::StatusOr<std::unique_ptr<Model>> Create(const std::string& text, int64_t batch) {
    return Model::Create(ParseModel(text), 64, 1, batch, little_.get());
  }
};

class ModelMemorySumTest : public ModelMemoryTest {};

// A model reports exactly the memory that it allocated, regardless of what its layers share and keep.
TEST_P(ModelMemorySumTest, AddsUpToWhatTheDeviceGave) {
  for (const int64_t batch : {1, 16}) {
    const absl::StatusOr<std::unique_ptr<Model>> model = Create(GetParam(), batch);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->Memory().total(), kGiven - little_->Memory().free) << "batch " << batch;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, ModelMemorySumTest,
    ::testing::Values("layers { dense { units: 8 } } layers { relu {} } layers { dropout { rate: 0.5 } } "
                      "layers { dense { units: 2 } } loss { softmax_cross_entropy {} }",
                      "layers { dense { units: 64 } } layers { tanh {} } layers { gelu {} } "
                      "layers { dense { units: 1 no_bias: true } } loss { mean_squared_error {} }",
                      "input { height: 8 width: 8 channels: 1 } layers { max_pool { kernel: 3 padding: 1 } } "
                      "layers { dense { units: 2 } } loss { softmax_cross_entropy {} }"));

constexpr char kSmall[] = "layers { dense { units: 8 } } loss { softmax_cross_entropy {} }";

TEST_F(ModelMemoryTest, TellsItByUse) {
  const absl::StatusOr<std::unique_ptr<Model>> model = Create(kSmall, 10);
  ASSERT_TRUE(model.ok()) << model.status();
  const MemoryBytes memory = (*model)->Memory();
  EXPECT_EQ(memory.weights, (64 * 8 + 8) * 4);
  EXPECT_EQ(memory.gradients, (64 * 8 + 8) * 4);
  // Each example has features, outputs, their gradient and a label; the loss has two totals.
  EXPECT_EQ(memory.activations, (10 * (64 + 8 + 8 + 1) + 2) * 4);
}

TEST_F(ModelMemoryTest, ShortageSaysWhatIsAskedForWhatIsFreeAndWhichBatchFits) {
  const absl::Status status = Create(kSmall, 10000).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("softmax cross-entropy, 520 parameters at batch 10000 needs 3.1 MiB: weights 2.0 KiB, "
                        "gradients 2.0 KiB, activations 3.1 MiB; free: 1.0 MiB. Want training.batch_size of "
                        "at most 3223 (2500 with accumulate_batches times 4 keeps the examples per step)"));
  // A failed Create frees everything that it allocated.
  EXPECT_EQ(little_->Memory().free, kGiven);
  EXPECT_FALSE(Create(kSmall, 3224).ok());
  EXPECT_TRUE(Create(kSmall, 3223).ok());
}

TEST_F(ModelMemoryTest, ModelWhoseWeightsAloneAreTooMuchIsToldSo) {
  const absl::Status status = Create("layers { dense { units: 4096 } } loss { softmax_cross_entropy {} }", 10).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("Not even a batch of 1 fits, which needs 2.1 MiB: want a smaller "
                        "model, or a device with more memory"));
}

}  // namespace
}  // namespace ballast
