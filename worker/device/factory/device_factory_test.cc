// SPDX-License-Identifier: Apache-2.0
#include "worker/device/factory/device_factory.h"

#include <gmock/gmock.h>

#include <string>

#include "absl/status/status.h"

namespace ballast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

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
