// SPDX-License-Identifier: Apache-2.0
#include "worker/device/testing/queued_device.h"

#include <gtest/gtest.h>

#include "worker/device/conformance/device_conformance_test.h"

namespace ballast {
namespace {

INSTANTIATE_TEST_SUITE_P(Queued, DeviceConformanceTest,
                         ::testing::Values(DeviceUnderTest{
                             "queued", [] { return absl::StatusOr<std::unique_ptr<Device>>(CreateQueuedDevice()); }}),
                         [](const auto& info) { return info.param.name; });

TEST(QueuedDeviceTest, DownloadWaitsForWhatWasIssuedBeforeTheMark) {
  const std::unique_ptr<QueuedDevice> device = CreateQueuedDevice();
  const std::unique_ptr<Buffer> early = device->Allocate(1).value(), late = device->Allocate(1).value();
  device->Allow(1);
  device->Fill(1, {early.get(), 1, 1});
  device->Mark();
  device->Fill(2, {late.get(), 1, 1});
  float value = 0;
  ASSERT_TRUE(device->Download(*early, 0, absl::MakeSpan(&value, 1)).ok());
  EXPECT_EQ(value, 1);
  EXPECT_EQ(device->done(), 1u);
  device->AllowAll();
  ASSERT_TRUE(device->Download(*late, 0, absl::MakeSpan(&value, 1)).ok());
  EXPECT_EQ(value, 2);
}

TEST(QueuedDeviceTest, FirstErrorStays) {
  const std::unique_ptr<QueuedDevice> device = CreateQueuedDevice();
  device->Fail(absl::UnavailableError("the GPU is lost"));
  EXPECT_EQ(device->Synchronize(), absl::UnavailableError("the GPU is lost"));
  EXPECT_EQ(device->Synchronize(), absl::UnavailableError("the GPU is lost"));
}

}  // namespace
}  // namespace ballast
