// SPDX-License-Identifier: Apache-2.0
#include "worker/device/collective/reducer.h"

#include <gmock/gmock.h>

#include <vector>

#include "worker/device/cpu/cpu_device.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class HostReducerTest : public ::testing::Test {
 protected:
  HostReducerTest() {
    for (int i = 0; i < 3; ++i) {
      owned_.push_back(CreateCpuDevice(1, 1 << 16));
      devices_.push_back({std::string(1, '0' + i), owned_.back().get()});
    }
  }

  std::unique_ptr<Buffer> Make(size_t device, const std::vector<float>& values) {
    absl::StatusOr<std::unique_ptr<Buffer>> buffer = owned_[device]->Allocate(values.size());
    EXPECT_TRUE(buffer.ok() && owned_[device]->Upload(values, **buffer, 0).ok());
    return *std::move(buffer);
  }
  std::vector<float> Values(size_t device, Buffer& buffer) {
    std::vector<float> values(buffer.size());
    EXPECT_TRUE(owned_[device]->Download(buffer, 0, absl::MakeSpan(values)).ok());
    return values;
  }

  std::vector<std::unique_ptr<Device>> owned_;
  std::vector<NamedDevice> devices_;
};

TEST_F(HostReducerTest, TheFirstGetsTheSumAndTheOthersStay) {
  const std::unique_ptr<Reducer> reducer = CreateHostReducer(devices_, 3).value();
  const std::unique_ptr<Buffer> a = Make(0, {1, 2, 3}), b = Make(1, {10, 20, 30}), c = Make(2, {100, 200, 300});
  ASSERT_TRUE(reducer->Sum({{a.get(), 1, 3}, {b.get(), 1, 3}, {c.get(), 1, 3}}).ok());
  EXPECT_THAT(Values(0, *a), ElementsAre(111, 222, 333));
  EXPECT_THAT(Values(1, *b), ElementsAre(10, 20, 30));
  EXPECT_THAT(Values(2, *c), ElementsAre(100, 200, 300));
}

TEST_F(HostReducerTest, PartsSmallerThanTheLargestAreSummedToo) {
  const std::unique_ptr<Reducer> reducer = CreateHostReducer({devices_[0], devices_[1]}, 3).value();
  const std::unique_ptr<Buffer> a = Make(0, {1, 2}), b = Make(1, {10, 20});
  ASSERT_TRUE(reducer->Sum({{a.get(), 1, 2}, {b.get(), 1, 2}}).ok());
  EXPECT_THAT(Values(0, *a), ElementsAre(11, 22));
}

TEST_F(HostReducerTest, RefusesAnotherNumberOfParts) {
  const std::unique_ptr<Reducer> reducer = CreateHostReducer(devices_, 3).value();
  const std::unique_ptr<Buffer> a = Make(0, {1});
  EXPECT_EQ(reducer->Sum({{a.get(), 1, 1}}).message(), "reducer: got 1 parts, want 3");
}

TEST_F(HostReducerTest, TooLittleMemoryIsToldWithTheDevice) {
  const absl::Status status = CreateHostReducer(devices_, 1 << 20).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(),
              HasSubstr("device 0: cannot allocate the buffer for sums of gradients: cpu device: got 1048576"));
}

}  // namespace

}  // namespace ballast
