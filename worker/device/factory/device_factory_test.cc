// SPDX-License-Identifier: Apache-2.0
#include "worker/device/factory/device_factory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(DeviceFactoryTest, CpuIsAlwaysThere) {
  absl::StatusOr<std::unique_ptr<Device>> device = CreateDevice("cpu", 1, {});
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_THAT((*device)->Describe(), StartsWith("cpu"));
}

TEST(DeviceFactoryTest, AutoAlwaysFindsADevice) { EXPECT_TRUE(CreateDevice("auto", 1, {}).ok()); }

TEST(DeviceFactoryTest, CudaIsOpenedOrRefusedWithTheWayOut) {
  const absl::StatusOr<std::unique_ptr<Device>> device = CreateDevice("cuda", 1, {});
  if (device.ok()) {
    EXPECT_THAT((*device)->Describe(), StartsWith("cuda"));
    return;
  }
  EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(device.status().message()), StartsWith("--device cuda: "));
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("use --device cpu"));
}

TEST(DeviceFactoryTest, UnknownKindIsRefusedWithTheKnownOnes) {
  const absl::Status status = CreateDevice("tpu", 1, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "--device: got \"tpu\", want auto, cpu or cuda");
}

TEST(DeviceFactoryTest, NoThreadsAreRefused) {
  const absl::Status status = CreateDevice("cpu", 0, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "--threads: got 0, want a number from 1 to 1024");
}

}  // namespace
}  // namespace ballast
