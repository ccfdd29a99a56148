// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/emulator/emulated_gpu.h"

// Faults of a machine's GPUs, at opening and later.
namespace ballast {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CudaDeviceErrorTest : public ::testing::Test {
 protected:
  // Opens a GPU on a machine with these settings.
  absl::StatusOr<std::unique_ptr<Device>> Open(const emulator::Settings& settings) {
    emulator::Reset(settings);
    return OpenCudaDevice({});
  }

  // All memory is returned, whatever failed.
  void TearDown() override {
    emulator::FailEverything(cudaSuccess);
    EXPECT_EQ(emulator::Count().device_bytes, 0);
    EXPECT_EQ(emulator::Count().host_bytes, 0);
    EXPECT_EQ(emulator::Count().streams, 0);
    EXPECT_EQ(emulator::Count().events, 0);
  }
};

TEST_F(CudaDeviceErrorTest, AMachineWithoutAUsableGpuIsRefusedWithTheReason) {
  const struct {
    const char* name;
    emulator::Settings machine;
    const char* why;
  } cases[] = {
      {"NoDriverIsSaid", {.driver_version = 0}, "no NVIDIA driver"},
      {"AnOldDriverIsNamedWithTheVersionWanted",
       {.driver_version = 12040},
       "it supports CUDA 12.4, want at least 13.0; update the driver to 580 or newer"},
      {"NoGpuIsSaid", {.devices = 0}, "finds no GPU"},
      {"AnOldChipIsNamedWithWhatIsWanted",
       {.compute_major = 7, .compute_minor = 5},
       "has compute capability 7.5, want at least 8.0"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const absl::Status status = Open(c.machine).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(StartsWith("--device cuda: "), HasSubstr(c.why), HasSubstr("use --device cpu")));
  }
}

TEST_F(CudaDeviceErrorTest, AGpuThatAnotherProcessFillsSaysWhatWasAskedAndWhatIsFree) {
  const std::unique_ptr<Device> device = Open({.memory_bytes = size_t{1} << 20}).value();
  const absl::Status status = device->Allocate(1 << 20).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("requested 4.0 MiB, 1.0 MiB of 1.0 MiB is free"));
}

TEST_F(CudaDeviceErrorTest, AGpuIsOpenedByItsNumberAndAnotherIsRefused) {
  emulator::Reset({.devices = 2});
  EXPECT_TRUE(OpenCudaDevice({.gpu = 1}).ok());
  EXPECT_EQ(OpenCudaDevice({.gpu = 2}).status(),
            absl::FailedPreconditionError("--device cuda: got GPU 2, want one of the usable GPUs: 0, 1"));
}

TEST_F(CudaDeviceErrorTest, AGpuThatIsFullWhenItIsOpenedSaysWhatToDo) {
  emulator::Reset({});
  emulator::FailCall("cudaStreamCreateWithFlags", cudaErrorMemoryAllocation, 0);
  const absl::Status status = OpenCudaDevice({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), AllOf(StartsWith("--device cuda: GPU 0, Emulated, cannot be opened: "),
                                                   HasSubstr("see nvidia-smi"), HasSubstr("use --device cpu")));
}

TEST_F(CudaDeviceErrorTest, AGpuThatAnotherProcessHasAloneIsUnavailable) {
  const absl::Status status = Open({.compute_mode = cudaComputeModeExclusiveProcess, .held = true}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith("--device cuda: GPU 0, Emulated, cannot be opened: "),
                    HasSubstr("its compute mode is EXCLUSIVE_PROCESS and another process holds it"),
                    HasSubstr("nvidia-smi -i 0 -c DEFAULT"), HasSubstr("use --device cpu")));
}

TEST_F(CudaDeviceErrorTest, AnExclusiveGpuThatNobodyHoldsIsOpened) {
  EXPECT_TRUE(Open({.compute_mode = cudaComputeModeExclusiveProcess}).ok());
}

TEST_F(CudaDeviceErrorTest, AProhibitedGpuIsToldFromAHeldOne) {
  const absl::Status status = Open({.compute_mode = cudaComputeModeProhibited}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("its compute mode is PROHIBITED"));
}

TEST_F(CudaDeviceErrorTest, AGpuThatIsLostIsNotCalledExclusive) {
  emulator::Reset({});
  emulator::FailCall("cudaSetDevice", cudaErrorDevicesUnavailable, 0);
  const absl::Status status = OpenCudaDevice({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("; stop the processes that use its memory (see nvidia-smi), "));
}

TEST_F(CudaDeviceErrorTest, AnAllocationThatFailsLeavesTheDeviceUsable) {
  const std::unique_ptr<Device> device = Open({.memory_bytes = size_t{1} << 20}).value();
  EXPECT_FALSE(device->Allocate(1 << 20).ok());
  EXPECT_TRUE(device->Allocate(1 << 10).ok());
  EXPECT_TRUE(device->Synchronize().ok());
}

TEST_F(CudaDeviceErrorTest, MemoryGivenBackIsThereForTheNext) {
  const std::unique_ptr<Device> device = Open({.memory_bytes = size_t{1} << 20}).value();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(device->Allocate(200 << 10).ok()) << i;
}

TEST_F(CudaDeviceErrorTest, AGpuLostInMidRunIsNamedByEveryLaterCall) {
  const std::unique_ptr<Device> device = Open({}).value();
  std::unique_ptr<Buffer> buffer = *device->Allocate(4);
  emulator::FailEverything(cudaErrorECCUncorrectable);
  device->Fill(1.0f, {buffer.get(), 1, 4});
  emulator::FailEverything(cudaErrorLaunchFailure);
  std::vector<float> values(4);
  const absl::Status download = device->Download(*buffer, 0, absl::MakeSpan(values));
  EXPECT_EQ(download.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(download.message(), AllOf(HasSubstr("cudaErrorECCUncorrectable"), HasSubstr("lost")));
  EXPECT_EQ(device->Synchronize(), download);
  EXPECT_EQ(device->Upload(values, *buffer, 0), download);
  EXPECT_EQ(device->Allocate(1).status(), download);
  emulator::FailEverything(cudaSuccess);
}

TEST_F(CudaDeviceErrorTest, AKernelThatFailsIsNamedByItsOperation) {
  const std::unique_ptr<Device> device = Open({}).value();
  const std::unique_ptr<Buffer> buffer = *device->Allocate(4);
  emulator::FailCall("cudaLaunchKernelEx", cudaErrorNoKernelImageForDevice, 0);
  device->Fill(1.0f, {buffer.get(), 1, 4});
  device->Fill(2.0f, {buffer.get(), 1, 4});
  const absl::Status status = device->Synchronize();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("fill: cudaErrorNoKernelImageForDevice"));
}

TEST_F(CudaDeviceErrorTest, ARangePastABuffersEndIsRefusedAndHarmsNothing) {
  const std::unique_ptr<Device> device = Open({}).value();
  const std::unique_ptr<Buffer> buffer = *device->Allocate(4);
  std::vector<float> values(3, 5.0f);
  EXPECT_EQ(device->Upload(values, *buffer, 2).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(device->Download(*buffer, 2, absl::MakeSpan(values)).code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(device->Download(*buffer, 1, absl::MakeSpan(values)).ok());
  EXPECT_THAT(values, Each(0.0f));
}

TEST_F(CudaDeviceErrorTest, MemoryIsWhatTheGpuHasLeft) {
  const std::unique_ptr<Device> device = Open({.memory_bytes = size_t{1} << 20}).value();
  EXPECT_EQ(device->Memory().free, 1 << 20);
  const auto buffer = device->Allocate(1 << 10);
  EXPECT_EQ(device->Memory().free, (1 << 20) - (4 << 10));
  EXPECT_EQ(device->Memory().pinned, 64 << 20);
}

TEST_F(CudaDeviceErrorTest, PeakIsTheMostAtOnceAndNotWhatThePoolKeeps) {
  const std::unique_ptr<Device> device = Open({}).value();
  std::unique_ptr<Buffer> first = *device->Allocate(1 << 10), second = *device->Allocate(1 << 8);
  first.reset();
  ASSERT_TRUE(device->Synchronize().ok());
  EXPECT_EQ(device->PeakBytes(), 5 << 10);
  device->ResetPeak();
  EXPECT_EQ(device->PeakBytes(), 1 << 10);
  first = *device->Allocate(1 << 8);
  EXPECT_EQ(device->PeakBytes(), 2 << 10);
}

TEST_F(CudaDeviceErrorTest, PeakIsThatOfTheOwnGpu) {
  emulator::Reset({.devices = 2});
  const std::unique_ptr<Device> one = *OpenCudaDevice({.gpu = 0}), other = *OpenCudaDevice({.gpu = 1});
  const auto buffer = one->Allocate(1 << 10);
  EXPECT_EQ(one->PeakBytes(), 4 << 10);
  EXPECT_EQ(other->PeakBytes(), 0);
}

// A window of 2 x 2 x 3 elements at each of 3 x 4 positions of 5 images.
TEST_F(CudaDeviceErrorTest, WorkspaceOfConvolutionsIsReservedAndReported) {
  const std::unique_ptr<Device> device = Open({}).value();
  const ConvShape shape = {{4, 5, 3}, {2, 2}, 7};
  ASSERT_TRUE(device->ReserveWorkspace({shape}, 5).ok());
  EXPECT_EQ(device->Memory().workspace, 5 * 12 * 12 * 4);
  const auto x = device->Allocate(5 * 60), filters = device->Allocate(7 * 12), y = device->Allocate(5 * 12 * 7);
  const int64_t held = device->PeakBytes();
  device->Convolve(shape, {x->get(), 5, 60}, **filters, nullptr, {y->get(), 5, 84});
  ASSERT_TRUE(device->Synchronize().ok());
  EXPECT_EQ(device->PeakBytes(), held);
}

TEST_F(CudaDeviceErrorTest, AWorkspaceThatDoesNotFitIsAnError) {
  const std::unique_ptr<Device> device = Open({.memory_bytes = 1 << 10}).value();
  EXPECT_EQ(device->ReserveWorkspace({{{4, 5, 3}, {2, 2}, 7}}, 5).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(CudaDeviceErrorTest, DescribesTheGpu) {
  const std::unique_ptr<Device> device = Open({.memory_bytes = size_t{3} << 30}).value();
  EXPECT_THAT(device->Describe(), StartsWith("cuda (Emulated, 3.0 GiB, compute capability 9.0, "));
}

}  // namespace
}  // namespace ballast
