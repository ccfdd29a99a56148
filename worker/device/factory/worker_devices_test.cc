// SPDX-License-Identifier: Apache-2.0
#include "worker/device/factory/worker_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "worker/device/factory/cuda_device.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The error message, or "accepted".
std::string Refusal(const WorkerDevices::Request& request) {
  const absl::StatusOr<WorkerDevices> devices = WorkerDevices::Open(request);
  return devices.ok() ? "accepted" : std::string(devices.status().message());
}

TEST(WorkerDevicesTest, OneDeviceIsTheWorkersOwn) {
  const absl::StatusOr<WorkerDevices> devices = WorkerDevices::Open({.kind = "cpu"});
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->devices().size(), 1);
  EXPECT_EQ(devices->devices()[0].name, "cpu");
  EXPECT_FALSE(devices->split());
  EXPECT_THAT(devices->Describe(), StartsWith("cpu ("));
}

TEST(WorkerDevicesTest, ADeviceThatLayersAskForIsOpenedOnce) {
  const absl::StatusOr<WorkerDevices> devices =
      WorkerDevices::Open({.kind = "cpu", .placed = {{"layer \"a\"", "cpu"}, {"layer \"b\"", "cpu"}}});
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_EQ(devices->devices().size(), 1);
}

TEST(WorkerDevicesTest, ADeviceThatIsNotThereIsRefusedWithTheLayer) {
  EXPECT_THAT(Refusal({.kind = "cpu", .placed = {{"layer \"head\"", "63"}}}),
              StartsWith("layer \"head\": device is \"63\", want cpu"));
  EXPECT_THAT(Refusal({.kind = "cpu", .placed = {{"layer \"head\"", "63"}}}), HasSubstr(": this worker has no other"));
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
  const absl::Status status = WorkerDevices::Open({.kind = "cuda", .gpus = "64"}).status();
  EXPECT_FALSE(status.ok());
  if (UsableCudaGpus().ok()) {
    EXPECT_THAT(std::string(status.message()), StartsWith("--gpus: got 64, want at most "));
  } else {
    EXPECT_THAT(std::string(status.message()), StartsWith("--device cuda: "));
  }
}

TEST(WorkerDevicesTest, AllGpusWhereThereAreNoneAreTheCpu) {
  const absl::StatusOr<WorkerDevices> devices = WorkerDevices::Open({.kind = "auto", .gpus = "all"});
  ASSERT_TRUE(devices.ok()) << devices.status();
  if (!UsableCudaGpus().ok()) {
    EXPECT_EQ(devices->devices()[0].name, "cpu");
    EXPECT_FALSE(devices->split());
  }
}

TEST(WorkerDevicesTest, PrecisionIsThatOfAll) {
  absl::StatusOr<WorkerDevices> devices = WorkerDevices::Open({.kind = "cpu"});
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_EQ(*devices->SetPrecision(Precision::kTf32), Precision::kFp32);
  EXPECT_EQ(devices->SetPrecision(Precision::kBf16).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace ballast
