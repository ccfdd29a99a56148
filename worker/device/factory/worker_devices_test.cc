// SPDX-License-Identifier: Apache-2.0
#include "worker/device/factory/worker_devices.h"

#include <gmock/gmock.h>

#include <string>

#include "absl/status/status.h"
#include "worker/device/factory/cuda_device.h"

namespace ballast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The error message, or "accepted".
std::string Refusal(const WorkerDevices::Request& request) {
  const absl::StatusOr<WorkerDevices> devices = WorkerDevices::Open(request);
  return devices.ok() ? "accepted" : std::string(devices.status().message());
}

TEST(WorkerDevicesTest, OneDeviceIsTheWorkersOwn) {
  const WorkerDevices devices = WorkerDevices::Open({.kind = "cpu"}).value();
  ASSERT_EQ(devices.devices().size(), 1);
  EXPECT_EQ(devices.devices()[0].name, "cpu");
  EXPECT_FALSE(devices.split());
  EXPECT_THAT(devices.Describe(), StartsWith("cpu ("));
}

TEST(WorkerDevicesTest, ADeviceThatLayersAskForIsOpenedOnce) {
  const WorkerDevices devices =
      WorkerDevices::Open({.kind = "cpu", .placed = {{"layer \"a\"", "cpu"}, {"layer \"b\"", "cpu"}}}).value();
  EXPECT_EQ(devices.devices().size(), 1);
}

TEST(WorkerDevicesTest, ADeviceThatIsNotThereIsRefusedWithTheLayer) {
  EXPECT_THAT(Refusal({.kind = "cpu", .placed = {{"layer \"head\"", "63"}}}),
              AllOf(StartsWith("layer \"head\": device is \"63\", want cpu"), HasSubstr(": this worker has no other")));
}

TEST(WorkerDevicesTest, RefusesANumberOfGpusThatIsNone) {
  for (const char* gpus : {"0", "-1", "65", "two", "1.5"}) {
    EXPECT_EQ(Refusal({.kind = "cuda", .gpus = gpus}),
              "--gpus: got \"" + std::string(gpus) + "\", want all, or a number from 1 to 64");
  }
}

TEST(WorkerDevicesTest, RefusesSeveralGpusOnTheCpu) {
  EXPECT_EQ(Refusal({.kind = "cpu", .gpus = "2"}),
            "--gpus: got 2 with --device cpu, want it with --device cuda or auto");
  EXPECT_EQ(Refusal({.kind = "cpu", .gpus = "1"}), "accepted");
}

TEST(WorkerDevicesTest, MoreGpusThanThereAreAreRefused) {
  EXPECT_THAT(Refusal({.kind = "cuda", .gpus = "64"}),
              StartsWith(UsableCudaGpus().ok() ? "--gpus: got 64, want at most " : "--device cuda: "));
}

TEST(WorkerDevicesTest, AllGpusWhereThereAreNoneAreTheCpu) {
  const WorkerDevices devices = WorkerDevices::Open({.kind = "auto", .gpus = "all"}).value();
  if (!UsableCudaGpus().ok()) {
    EXPECT_EQ(devices.devices()[0].name, "cpu");
    EXPECT_FALSE(devices.split());
  }
}

TEST(WorkerDevicesTest, PrecisionIsThatOfAll) {
  WorkerDevices devices = WorkerDevices::Open({.kind = "cpu"}).value();
  EXPECT_EQ(*devices.SetPrecision(Precision::kTf32), Precision::kFp32);
  EXPECT_EQ(devices.SetPrecision(Precision::kBf16).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(DeviceFactoryTest, CpuIsAlwaysThere) {
  EXPECT_THAT(CreateDevice("cpu", 1, {}).value()->Describe(), StartsWith("cpu"));
}

TEST(DeviceFactoryTest, AutoAlwaysFindsADevice) { EXPECT_TRUE(CreateDevice("auto", 1, {}).ok()); }

TEST(DeviceFactoryTest, CudaIsOpenedOrRefusedWithTheWayOut) {
  const absl::StatusOr<std::unique_ptr<Device>> device = CreateDevice("cuda", 1, {});
  if (device.ok()) {
    EXPECT_THAT((*device)->Describe(), StartsWith("cuda"));
    return;
  }
  EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(device.status().message()),
              AllOf(StartsWith("--device cuda: "), HasSubstr("use --device cpu")));
}

TEST(DeviceFactoryTest, UnknownKindIsRefusedWithTheKnownOnes) {
  EXPECT_EQ(CreateDevice("tpu", 1, {}).status(),
            absl::InvalidArgumentError("--device: got \"tpu\", want auto, cpu or cuda"));
}

TEST(DeviceFactoryTest, NoThreadsAreRefused) {
  EXPECT_EQ(CreateDevice("cpu", 0, {}).status(),
            absl::InvalidArgumentError("--threads: got 0, want a number from 1 to 1024"));
}

}  // namespace

}  // namespace ballast
