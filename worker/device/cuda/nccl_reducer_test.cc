// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/nccl_reducer.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "worker/device/cpu/cpu_device.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/emulated_nccl.h"
#include "worker/device/cuda/emulator/emulated_gpu.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NcclReducerTest : public ::testing::TestWithParam<emulator::Schedule> {
 protected:
  void SetUp() override {
    emulator::ResetNccl();
    emulator::Reset({.schedule = GetParam(), .devices = 3});
    for (int i = 0; i < 3; ++i) {
      owned_.push_back(*OpenCudaDevice({.gpu = i}));
      devices_.push_back({std::to_string(i), owned_.back().get()});
      parts_.push_back(*owned_.back()->Allocate(50));
    }
    reducer_ = *MakeNcclReducer(emulator::EmulatedNccl(), devices_);
  }

  std::vector<Matrix> Parts() const {
    std::vector<Matrix> parts;
    for (const std::unique_ptr<Buffer>& part : parts_) parts.push_back({part.get(), 5, 10});
    return parts;
  }

  std::vector<float> Values(size_t device) {
    std::vector<float> values(50);
    EXPECT_TRUE(owned_[device]->Download(*parts_[device], 0, absl::MakeSpan(values)).ok());
    return values;
  }

  std::vector<std::unique_ptr<Device>> owned_;
  std::vector<NamedDevice> devices_;
  std::vector<std::unique_ptr<Buffer>> parts_;
  std::unique_ptr<Reducer> reducer_;
};

INSTANTIATE_TEST_SUITE_P(Schedules, NcclReducerTest,
                         ::testing::Values(emulator::Schedule::kLate, emulator::Schedule::kAtOnce,
                                           emulator::Schedule::kRandom));

TEST_P(NcclReducerTest, TheFirstPartBecomesTheSumOfWhatWasIssuedBefore) {
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 3; ++i) owned_[i]->Fill(round + i, Parts()[i]);
    ASSERT_TRUE(reducer_->Sum(Parts()).ok());
    // Later operations must neither be part of the sum nor change it.
    for (int i = 1; i < 3; ++i) owned_[i]->Fill(-1, Parts()[i]);
    EXPECT_THAT(Values(0), Each(3.0f * round + 3));
  }
}

TEST_P(NcclReducerTest, OperationsOnTheSumComeAfterIt) {
  for (int i = 0; i < 3; ++i) owned_[i]->Fill(2, Parts()[i]);
  ASSERT_TRUE(reducer_->Sum(Parts()).ok());
  owned_[0]->Scale(10, Parts()[0]);
  EXPECT_THAT(Values(0), Each(60.0f));
  EXPECT_THAT(Values(1), Each(2.0f));
}

TEST_P(NcclReducerTest, SaysWhatSumsAndGivesItBack) {
  EXPECT_EQ(reducer_->Describe(), "by NCCL 2.27.3");
  EXPECT_THAT(emulator::NcclNow().gpus, ElementsAre(0, 1, 2));
  reducer_.reset();
  EXPECT_EQ(emulator::NcclNow().destroyed, 3);
}

TEST_P(NcclReducerTest, AbortedItSumsNoMore) {
  reducer_->Abort();
  reducer_->Abort();
  EXPECT_EQ(emulator::NcclNow().aborted, 3);
  EXPECT_EQ(reducer_->Sum(Parts()).message(), "sum of gradients over GPUs: aborted after a GPU failed");
}

TEST_P(NcclReducerTest, AFailedGpuIsNotWaitedForAtTheEnd) {
  emulator::FailCall("cudaStreamSynchronize", cudaErrorECCUncorrectable, 0);
  EXPECT_FALSE(owned_[1]->Synchronize().ok());
  reducer_.reset();
  EXPECT_EQ(emulator::NcclNow().aborted, 3);
  EXPECT_EQ(emulator::NcclNow().destroyed, 0);
}

TEST_P(NcclReducerTest, IsNotHadForADeviceThatIsNoGpu) {
  const std::unique_ptr<Device> cpu = CreateCpuDevice(1);
  devices_[1] = {"cpu", cpu.get()};
  const absl::Status status = MakeNcclReducer(emulator::EmulatedNccl(), devices_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("device cpu is not a GPU"));
}

TEST_P(NcclReducerTest, SaysWhyNcclDoesNotConnect) {
  emulator::NcclNow().init_result = 2;
  EXPECT_EQ(MakeNcclReducer(emulator::EmulatedNccl(), devices_).status(),
            absl::UnavailableError("ncclCommInitAll: an emulated fault"));
}

TEST_P(NcclReducerTest, AFaultIsTheSums) {
  emulator::NcclNow().reduce_result = 3;
  EXPECT_EQ(reducer_->Sum(Parts()).message(), "sum of gradients over GPUs: ncclReduce: an emulated fault");
  emulator::NcclNow().reduce_result = 0;
  emulator::NcclNow().async_error = 6;
  EXPECT_EQ(reducer_->Sum(Parts()).message(), "sum of gradients over GPUs: ncclReduce: an emulated fault");
  emulator::NcclNow().async_error = 0;
  EXPECT_EQ(reducer_->Sum({}).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace ballast
