// SPDX-License-Identifier: Apache-2.0
#include "worker/device/transfer.h"

#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <vector>

#include "worker/device/cpu/cpu_buffer.h"
#include "worker/device/cpu/cpu_device.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;

// Memory whose address is hidden from the host, like a GPU's.
class HiddenBuffer : public CpuBuffer {
 public:
  HiddenBuffer(int64_t size, std::atomic<int64_t>* used) : CpuBuffer(FloatMemory::Zeroed(size), size, used) {}
  absl::Span<float> host() override { return {}; }
};

class TransferTest : public ::testing::Test {
 protected:
  std::unique_ptr<Buffer> Make(Device& device, const std::vector<float>& values) {
    absl::StatusOr<std::unique_ptr<Buffer>> buffer = device.Allocate(values.size());
    EXPECT_TRUE(buffer.ok() && device.Upload(values, **buffer, 0).ok());
    return *std::move(buffer);
  }
  std::vector<float> Values(Device& device, Buffer& buffer) {
    std::vector<float> values(buffer.size());
    EXPECT_TRUE(device.Download(buffer, 0, absl::MakeSpan(values)).ok());
    return values;
  }

  std::unique_ptr<Buffer> MakeHidden(Device& device, const std::vector<float>& values) {
    std::unique_ptr<Buffer> buffer = std::make_unique<HiddenBuffer>(values.size(), &used_);
    EXPECT_TRUE(device.Upload(values, *buffer, 0).ok());
    return buffer;
  }

  std::atomic<int64_t> used_ = 0;
  const std::unique_ptr<Device> from_ = CreateCpuDevice(1);
  const std::unique_ptr<Device> to_ = CreateCpuDevice(1);
  Transfer transfer_;
};

TEST_F(TransferTest, CopiesTheMatrixAndNotWhatIsBehindIt) {
  const std::unique_ptr<Buffer> x = Make(*from_, {1, 2, 3, 4, 5}), y = Make(*to_, {0, 0, 0, 0, 9});
  ASSERT_TRUE(transfer_.Copy(*from_, {x.get(), 2, 2}, *to_, {y.get(), 1, 4}).ok());
  EXPECT_THAT(Values(*to_, *y), ElementsAre(1, 2, 3, 4, 9));
}

TEST_F(TransferTest, GoesThroughTheHostWhereItCannotAddressTheMemory) {
  const std::unique_ptr<Buffer> x = MakeHidden(*from_, {1, 2, 3}), y = MakeHidden(*to_, {0, 0, 9});
  ASSERT_TRUE(transfer_.Copy(*from_, {x.get(), 1, 2}, *to_, {y.get(), 2, 1}).ok());
  EXPECT_THAT(Values(*to_, *y), ElementsAre(1, 2, 9));
  const std::unique_ptr<Buffer> open = Make(*to_, {0, 0, 9});
  ASSERT_TRUE(transfer_.Copy(*from_, {x.get(), 1, 2}, *to_, {open.get(), 2, 1}).ok());
  EXPECT_THAT(Values(*to_, *open), ElementsAre(1, 2, 9));
}

TEST_F(TransferTest, CopiesNothingWhereThereIsNothing) {
  const std::unique_ptr<Buffer> x = Make(*from_, {1}), y = Make(*to_, {9});
  ASSERT_TRUE(transfer_.Copy(*from_, {x.get(), 0, 1}, *to_, {y.get(), 0, 1}).ok());
  EXPECT_THAT(Values(*to_, *y), ElementsAre(9));
}

TEST_F(TransferTest, RefusesMatricesOfDifferentSizes) {
  const std::unique_ptr<Buffer> x = Make(*from_, {1, 2}), y = Make(*to_, {0, 0});
  EXPECT_EQ(transfer_.Copy(*from_, {x.get(), 1, 2}, *to_, {y.get(), 1, 1}).message(),
            "transfer: got 2 elements, want 1");
}

}  // namespace
}  // namespace ballast
