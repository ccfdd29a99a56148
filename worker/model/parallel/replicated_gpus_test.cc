// SPDX-License-Identifier: Apache-2.0
// Tests replicas on emulated GPUs.
#include <gmock/gmock.h>

#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/emulated_nccl.h"
#include "worker/device/cuda/emulator/emulated_gpu.h"
#include "worker/device/cuda/nccl_reducer.h"
#include "worker/device/factory/cuda_device.h"
#include "worker/model/model_fixture.h"
#include "worker/model/parallel/replicated_model.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<Reducer>> CreateCudaReducer(absl::Span<const NamedDevice> devices) {
  return MakeNcclReducer(emulator::EmulatedNccl(), devices);
}

namespace {

using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr int64_t kFeatures = 12;
constexpr int64_t kBatch = 16;

class ReplicatedGpusTest : public ::testing::Test {
 protected:
  ReplicatedGpusTest() : features_(kBatch * kFeatures), labels_(kBatch) {
    emulator::ResetNccl();
    emulator::Settings settings;
    settings.schedule = emulator::Schedule::kRandom;
    settings.devices = 3;
    emulator::Reset(settings);
    for (size_t i = 0; i < features_.size(); ++i) features_[i] = std::sin(3.0f * i);
    for (size_t i = 0; i < labels_.size(); ++i) labels_[i] = i % 4;
    for (int i = 0; i < 3; ++i) {
      CudaOptions options;
      options.gpu = i;
      devices_.push_back(*OpenCudaDevice(options));
    }
  }

  std::unique_ptr<ReplicatedModel> Replicate(size_t replicas) {
    ModelOptions options{.features = kFeatures, .seed = 1, .max_batch = kBatch};
    for (size_t i = 0; i < replicas; ++i) options.devices.push_back({std::to_string(i), devices_[i].get()});
    absl::StatusOr<std::unique_ptr<ReplicatedModel>> model = ReplicatedModel::Create(
        ParseModel("layers { dense { units: 16 } } layers { relu {} } layers { dense { units: 4 } } "
                   "loss { softmax_cross_entropy {} }"),
        options);
    EXPECT_TRUE(model.ok()) << model.status();
    SetParameters(**model);
    return *std::move(model);
  }

  BatchView Batch() const {
    return {.features = features_, .labels = labels_, .examples = kBatch, .step = 5, .seed = 3};
  }

  // Returns the gradients after enough steps that passes are recorded as graphs and launched.
  std::vector<float> Train(TrainableModel& model, int steps = 4) {
    NoHooks hooks;
    for (int i = 0; i < steps; ++i) {
      const absl::StatusOr<BatchResult> result = model.Train(Batch(), hooks);
      EXPECT_TRUE(result.ok()) << result.status();
    }
    return Gradients(model);
  }

  std::vector<float> features_, labels_;
  std::vector<std::unique_ptr<Device>> devices_;
};

TEST_F(ReplicatedGpusTest, GradientsAreSummedByNccl) {
  const std::unique_ptr<ReplicatedModel> one = Replicate(1), several = Replicate(3);
  EXPECT_THAT(several->Describe(), HasSubstr("on each of 3 devices, gradients summed by NCCL 2.27.3"));
  const int before = emulator::NcclNow().sums;
  const std::vector<float> got = Train(*several);
  // Four parameters are summed in each of four steps.
  EXPECT_EQ(emulator::NcclNow().sums - before, 16);
  EXPECT_THAT(got, Pointwise(FloatNear(1e-6), Train(*one)));
}

TEST_F(ReplicatedGpusTest, WithoutNcclTheFirstOneSums) {
  const std::vector<float> expected = Train(*Replicate(3));
  emulator::NcclNow().init_result = 2;
  const std::unique_ptr<ReplicatedModel> model = Replicate(3);
  EXPECT_THAT(model->Describe(),
              HasSubstr("gradients summed on the first device (ncclCommInitAll: an emulated fault)"));
  EXPECT_THAT(Train(*model), Pointwise(FloatNear(1e-6), expected));
}

TEST_F(ReplicatedGpusTest, AFailedGpuEndsTheSums) {
  const std::unique_ptr<ReplicatedModel> model = Replicate(2);
  Train(*model, 1);
  emulator::FailCall("cudaStreamSynchronize", cudaErrorECCUncorrectable, 0);
  EXPECT_FALSE(devices_[1]->Synchronize().ok());
  EXPECT_THAT(std::string(TrainOnce(*model, Batch()).status().message()), HasSubstr("device 1: "));
  EXPECT_EQ(emulator::NcclNow().aborted, 2);
}

}  // namespace
}  // namespace ballast
