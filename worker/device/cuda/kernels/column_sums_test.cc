// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/column_sums.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "worker/device/cuda/emulator/emulated_gpu.h"
#include "worker/device/cuda/kernels/half_math.h"
#include "worker/device/cuda/kernels/sum_rows.h"
#include "worker/device/cuda/stream/cuda_status.h"

// Runs the kernels on the CPU, as threads of an emulated GPU.
namespace ballast {
namespace {

using ::testing::Each;

class ColumnSumsTest : public ::testing::Test {
 protected:
  ColumnSumsTest() {
    emulator::Reset({});
    stream_ = *MakeStream();
  }

  std::vector<float> Sum(ConstElements x, int64_t rows, int64_t columns) {
    std::vector<float> scratch(SumRowsScratch(rows, columns) + 4), sums(columns);
    EXPECT_EQ(LaunchSumRows(stream_.get(), x, rows, columns, scratch.data(), sums.data()), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
    return sums;
  }

  Stream stream_;
};

TEST_F(ColumnSumsTest, RowsOfManyImagesAreSummedInAtMost256Chunks) {
  EXPECT_EQ(ColumnSumChunks(200704, 32), 256);
  EXPECT_EQ(ColumnSumChunks(200704, 96), 256);
  EXPECT_EQ(ColumnSumChunks(200704, 1024), 32);
  EXPECT_EQ(ColumnSumChunks(200704, 100000), 1);
  EXPECT_EQ(ColumnSumChunks(128, 32), 1);
  EXPECT_EQ(ColumnSumChunks(0, 32), 1);
}

// Whole numbers, whose sums are exact in any order.
TEST_F(ColumnSumsTest, EachRowIsSummedOnce) {
  std::vector<float> x(200704 * 32);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i / 32 % 7);
  // 28672 times 0 + 1 + ... + 6.
  EXPECT_THAT(Sum(x.data(), 200704, 32), Each(602112));
}

TEST_F(ColumnSumsTest, SixteenBitElementsAreLoadedInPacksFromTheirOwnColumns) {
  std::vector<uint16_t> x(3 * 40);
  for (size_t i = 0; i < x.size(); ++i) x[i] = ToBf16(static_cast<float>(i % 40));
  const std::vector<float> sums = Sum({x.data(), ElementType::kBf16}, 3, 40);
  for (int j = 0; j < 40; ++j) EXPECT_EQ(sums[j], 3 * j) << j;
}

// A pack loads aligned memory only; the emulator's sanitizer build would report it otherwise.
TEST_F(ColumnSumsTest, RowsThatDoNotBeginWithAPackGiveTheSameSums) {
  std::vector<float> x(1 + 50 * 12);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 5);
  const std::vector<float> aligned(x.begin() + 1, x.end());
  EXPECT_EQ(Sum(x.data() + 1, 50, 12), Sum(aligned.data(), 50, 12));
  // Rows of 7 elements.
  EXPECT_THAT(Sum(std::vector<float>(50 * 7, 1.0f).data(), 50, 7), Each(50));
}

// 784 rows a chunk in 32 lanes, then 256 chunks in 32 lanes: chains of at most 24 + 3 + 7 and 7 + 3 + 7 additions, of
// which each changes the sum by at most 2^-24 of the magnitudes.
TEST_F(ColumnSumsTest, TheErrorIsThatOf51AdditionsAtMost) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  // Rows of 4 floats are loaded in packs, rows of 3 are not.
  for (const int64_t columns : {4, 3}) {
    std::vector<float> x(200704 * columns);
    std::vector<double> want(columns);
    for (size_t i = 0; i < x.size(); ++i) want[i % columns] += x[i] = uniform(generator);
    const std::vector<float> sums = Sum(x.data(), 200704, columns);
    for (int64_t j = 0; j < columns; ++j) EXPECT_NEAR(sums[j], want[j], 51 * 0x1p-24 * want[j]) << columns;
  }
}

}  // namespace
}  // namespace ballast
