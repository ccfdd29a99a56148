// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/cast.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "worker/device/cuda/emulator/emulated_gpu.h"
#include "worker/device/cuda/kernels/half_math.h"
#include "worker/device/cuda/kernels/map.h"
#include "worker/device/cuda/stream/cuda_status.h"

// Runs the kernels on the CPU, as threads of an emulated GPU. The offsets are those of the first element from an
// address that a pack can have.
namespace ballast {
namespace {

constexpr uint16_t kUntouched = 0x1234;

class CastTest : public ::testing::TestWithParam<std::tuple<int64_t, int, int>> {
 protected:
  CastTest() {
    emulator::Reset({});
    stream_ = *MakeStream();
    for (size_t i = 0; i < floats_.size(); ++i) floats_[i] = static_cast<float>(i) - 100.0f;
  }

  Stream stream_;
  std::vector<float> floats_ = std::vector<float>(300);
};

TEST_P(CastTest, RoundsEachElementAndTouchesNoOther) {
  const auto [n, at_x, at_y] = GetParam();
  std::vector<uint16_t> y(300, kUntouched), want = y;
  for (int64_t i = 0; i < n; ++i) want[at_y + i] = ToBf16(floats_[at_x + i]);
  ASSERT_EQ(LaunchToHalf(stream_.get(), HalfType::kBf16, n, &floats_[at_x], &y[at_y]), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
  EXPECT_EQ(y, want);
}

TEST_P(CastTest, WidensEachElementAndTouchesNoOther) {
  const auto [n, at_y, at_x] = GetParam();
  std::vector<uint16_t> x;
  for (const float value : floats_) x.push_back(ToFp16(value));
  std::vector<float> y(300, 0.5f), want = y;
  for (int64_t i = 0; i < n; ++i) want[at_y + i] = floats_[at_x + i];
  ASSERT_EQ(LaunchFromHalf(stream_.get(), HalfType::kFp16, n, &x[at_x], &y[at_y]), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
  EXPECT_EQ(y, want);
}

INSTANTIATE_TEST_SUITE_P(Offsets, CastTest,
                         ::testing::Combine(::testing::Values(0, 1, 7, 8, 9, 250), ::testing::Values(0, 1, 3, 4),
                                            ::testing::Values(0, 1, 5, 7, 8)));

TEST(SplitTest, ACastBeginsItsPacksWhereBothAddressesAllowIt) {
  const std::vector<float> x(64);
  std::vector<uint16_t> y(64);
  const auto split = [&](int at_x, int at_y, int64_t n) {
    MapCall<float, Bf16, 1> call = {{&x[at_x]}, reinterpret_cast<Bf16*>(&y[at_y]), n, 0, 0};
    Split(&call);
    return std::pair(call.head, call.packs);
  };
  EXPECT_EQ(split(0, 0, 50), std::pair(int64_t{0}, int64_t{6}));
  // Seven halves are missing to 16 bytes; eight floats are twice 16.
  EXPECT_EQ(split(1, 1, 50), std::pair(int64_t{7}, int64_t{5}));
  // After seven elements the floats are 28 bytes past a pack.
  EXPECT_EQ(split(0, 1, 50), std::pair(int64_t{50}, int64_t{0}));
  EXPECT_EQ(split(1, 1, 5), std::pair(int64_t{5}, int64_t{0}));
}

}  // namespace
}  // namespace ballast
