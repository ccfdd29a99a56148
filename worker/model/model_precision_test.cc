// SPDX-License-Identifier: Apache-2.0
// Compares models with 16-bit activations on an emulated GPU with the same models in fp32 on the CPU.

#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/emulator/emulated_gpu.h"
#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

constexpr int64_t kBatch = 16;
constexpr int64_t kFeatures = 36;

constexpr char kMlp[] =
    "layers { dense { units: 24 } } layers { relu {} } layers { dropout { rate: 0.1 } } "
    "layers { dense { units: 16 } } layers { gelu {} } layers { layer_norm {} } "
    "layers { dense { units: 3 } } loss { softmax_cross_entropy {} }";
constexpr char kCnn[] =
    "input { height: 6 width: 6 channels: 1 } layers { conv2d { filters: 4 kernel: 3 padding: 1 } } "
    "layers { batch_norm {} } layers { relu {} } layers { max_pool { kernel: 2 } } "
    "layers { residual { layers { conv2d { filters: 4 kernel: 3 padding: 1 } } layers { tanh {} } } } "
    "layers { average_pool { kernel: 3 } } layers { dense { units: 3 } } loss { softmax_cross_entropy {} }";

struct Case {
  std::string name;
  std::string model;
  Precision precision;
  float loss_scale;
};

class ModelPrecisionTest : public ::testing::TestWithParam<Case> {
 protected:
  static std::unique_ptr<Device> OpenEmulated(Precision precision) {
    emulator::Settings settings;
    settings.schedule = emulator::Schedule::kRandom;
    emulator::Reset(settings);
    std::unique_ptr<Device> device = *OpenCudaDevice({});
    EXPECT_TRUE(device->SetPrecision(precision).ok());
    return device;
  }

  static std::unique_ptr<Model> Create(const std::string& text, Device* device) {
    std::unique_ptr<Model> model = *Model::Create(ParseModel(text), kFeatures, 1, kBatch, device);
    std::mt19937 generator(1);
    for (size_t p = 0; p < model->parameters().size(); ++p) {
      const Parameter& parameter = model->parameters()[p];
      const float spread = parameter.shape.size() > 1 ? 2 / std::sqrt(parameter.elements / parameter.shape[0]) : 0;
      std::uniform_real_distribution<float> uniform(-spread, spread);
      std::vector<float> values(parameter.elements, parameter.initializer.has_constant() ? 1.0f : 0.0f);
      if (spread > 0) {
        for (float& value : values) value = uniform(generator);
      }
      EXPECT_TRUE(model->SetParameter(p, values).ok());
    }
    return model;
  }

  // Returns the mean loss of each step of plain SGD, on images of three classes that are each lighter in another third.
  static std::vector<double> Train(Model& model, float loss_scale) {
    std::mt19937 generator(2);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<double> losses;
    NoHooks hooks;
    for (uint64_t step = 0; step < 40; ++step) {
      std::vector<float> features(kBatch * kFeatures), labels(kBatch);
      for (int64_t i = 0; i < kBatch; ++i) {
        labels[i] = static_cast<float>(generator() % 3);
        for (int64_t j = 0; j < kFeatures; ++j) {
          features[i * kFeatures + j] = uniform(generator) + (j / 12 == static_cast<int64_t>(labels[i]) ? 1.0f : 0.0f);
        }
      }
      const auto result = model.Train(
          {.features = features, .labels = labels, .examples = kBatch, .step = step, .loss_scale = loss_scale}, hooks);
      EXPECT_TRUE(result.ok()) << result.status();
      losses.push_back(result->loss_sum / kBatch);
      for (size_t p = 0; p < model.parameters().size(); ++p) {
        const std::vector<float> gradient = Gradient(model, p);
        std::vector<float> values(gradient.size());
        EXPECT_TRUE(model.GetParameter(p, absl::MakeSpan(values)).ok());
        for (size_t i = 0; i < values.size(); ++i) values[i] -= 0.2f * gradient[i] / loss_scale;
        EXPECT_TRUE(model.SetParameter(p, values).ok());
      }
    }
    return losses;
  }
};

TEST_P(ModelPrecisionTest, LearnsAsInFloats) {
  const std::unique_ptr<Device> cpu = CreateCpuDevice(1), gpu = OpenEmulated(GetParam().precision);
  const std::vector<double> want = Train(*Create(GetParam().model, cpu.get()), 1);
  const std::vector<double> got = Train(*Create(GetParam().model, gpu.get()), GetParam().loss_scale);
  double want_last = 0, got_last = 0;
  for (size_t i = want.size() - 10; i < want.size(); ++i) {
    want_last += want[i] / 10;
    got_last += got[i] / 10;
  }
  EXPECT_LT(want_last, 0.5 * want[0]);
  EXPECT_NEAR(got[0], want[0], 0.02);
  EXPECT_NEAR(got_last, want_last, 0.05 * want_last + 0.01);
}

TEST_P(ModelPrecisionTest, EvaluatesAsInFloats) {
  const std::unique_ptr<Device> cpu = CreateCpuDevice(1), gpu = OpenEmulated(GetParam().precision);
  const std::vector<float> features(kBatch * kFeatures, 0.75f), labels(kBatch, 1);
  const BatchView batch{.features = features, .labels = labels, .examples = kBatch};
  const double want = Create(GetParam().model, cpu.get())->Evaluate(batch)->loss_sum;
  EXPECT_NEAR(Create(GetParam().model, gpu.get())->Evaluate(batch)->loss_sum, want, 0.02 * want);
}

// The features count twice, because the next batch is uploaded while the current one is computed.
TEST_P(ModelPrecisionTest, ActivationsTakeHalfTheMemory) {
  const std::unique_ptr<Device> gpu = OpenEmulated(GetParam().precision);
  const auto model = Create("layers { dense { units: 10 } } loss { softmax_cross_entropy {} }", gpu.get());
  const MemoryBytes memory = model->Memory();
  const int64_t label_bytes = 2 * 4, activation_bytes = (2 * kFeatures + 10 + 10) * 2;
  EXPECT_EQ(memory.activations, kBatch * (label_bytes + activation_bytes) + kLossTotals * 4);
  EXPECT_EQ(memory.weights, (kFeatures * 10 + 10) * (4 + 2));
  EXPECT_EQ(memory.gradients, (kFeatures * 10 + 10) * 4);
}

INSTANTIATE_TEST_SUITE_P(Precisions, ModelPrecisionTest,
                         ::testing::Values(Case{"mlp_bf16", kMlp, Precision::kBf16, 1},
                                           Case{"mlp_fp16", kMlp, Precision::kFp16, 1024},
                                           Case{"cnn_bf16", kCnn, Precision::kBf16, 1},
                                           Case{"cnn_fp16", kCnn, Precision::kFp16, 1024}),
                         [](const auto& info) { return info.param.name; });

// The GPU has 1 MiB. The batch needs more than that in fp32, but fits in bf16.
TEST(ModelPrecisionShortageTest, NamesThePrecisionThatFits) {
  emulator::Settings settings;
  settings.memory_bytes = 1 << 20;
  emulator::Reset(settings);
  const std::unique_ptr<Device> gpu = *OpenCudaDevice({});
  const v1::Model config = ParseModel("layers { dense { units: 10 } } loss { softmax_cross_entropy {} }");
  const absl::Status status = Model::Create(config, kFeatures, 1, 4000, gpu.get()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("; or training.precision: BF16, with which this batch needs 753.6 KiB"),
            absl::string_view::npos)
      << status;
}

}  // namespace
}  // namespace ballast
