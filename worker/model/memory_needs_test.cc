// SPDX-License-Identifier: Apache-2.0
#include "worker/model/memory_needs.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

// 4 MiB of weights, as many of gradients, 1 KiB for each example.
constexpr MemoryNeeds kNeeds{.weights = 1 << 20, .gradients = 1 << 20, .kept = 256, .per_example = 256};

TEST(MemoryNeedsTest, GrowWithTheBatch) {
  EXPECT_EQ(kNeeds.At(1000).weights, 4 << 20);
  EXPECT_EQ(kNeeds.At(1000).gradients, 4 << 20);
  EXPECT_EQ(kNeeds.At(1000).activations, 1001 * 1024);
}

TEST(MemoryNeedsTest, LargestBatchFillsTheMemoryAndNoMore) {
  EXPECT_EQ(kNeeds.LargestBatch((8 << 20) + 1024), 0);
  EXPECT_EQ(kNeeds.LargestBatch((8 << 20) + 2 * 1024 - 1), 0);
  EXPECT_EQ(kNeeds.LargestBatch((8 << 20) + 2 * 1024), 1);
  EXPECT_EQ(kNeeds.LargestBatch(9 << 20), 1023);
  EXPECT_EQ(kNeeds.LargestBatch(0), 0);
}

TEST(MemoryNeedsTest, ShortageSaysWhatFits) {
  EXPECT_EQ(DescribeShortage(kNeeds, 4096, 9 << 20),
            "needs 12.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 4.0 MiB; free are 9.0 MiB. Want "
            "training.batch_size of at most 1023: 820 with accumulate_batches times 5 has as many examples in a step");
}

TEST(MemoryNeedsTest, ShortageWhereNoBatchFitsSaysSo) {
  EXPECT_EQ(DescribeShortage(kNeeds, 4096, 1 << 20),
            "needs 12.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 4.0 MiB; free are 1.0 MiB. Not even a "
            "batch of 1 fits, which needs 8.0 MiB: want a smaller model, or a device with more memory");
}

TEST(MemoryNeedsTest, ShortageThatCameFromElsewhereSaysSo) {
  EXPECT_EQ(DescribeShortage(kNeeds, 1, 1 << 30),
            "needs 8.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 2.0 KiB; free are 1.0 GiB. Want it free "
            "from other processes");
}

}  // namespace
}  // namespace ballast
