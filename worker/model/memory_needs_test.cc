// SPDX-License-Identifier: Apache-2.0
#include "worker/model/memory_needs.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

// 4 MiB of weights, 4 MiB of gradients, 1 KiB for each example.
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
  EXPECT_EQ(DescribeShortage(kNeeds, {}, 4096, 9 << 20),
            "needs 12.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 4.0 MiB; free: 9.0 MiB. Want "
            "training.batch_size of at most 1023 (820 with accumulate_batches times 5 keeps the examples per step)");
}

TEST(MemoryNeedsTest, ShortageWhereNoBatchFitsSaysSo) {
  EXPECT_EQ(DescribeShortage(kNeeds, {}, 4096, 1 << 20),
            "needs 12.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 4.0 MiB; free: 1.0 MiB. Not even a "
            "batch of 1 fits, which needs 8.0 MiB: want a smaller model, or a device with more memory");
}

// kNeeds with half the activations.
constexpr MemoryNeeds kRecomputing = {.weights = 1 << 20, .gradients = 1 << 20, .per_example = 128};

TEST(MemoryNeedsTest, ShortageTellsOfRecomputationThatIsEnough) {
  EXPECT_EQ(DescribeShortage(kNeeds, {{"training.recompute: true", kRecomputing}}, 4096, 11 << 20),
            "needs 12.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 4.0 MiB; free: 11.0 MiB. Want "
            "training.batch_size of at most 3071 (2048 with accumulate_batches times 2 keeps the examples per step); "
            "or training.recompute: true, with which this batch needs 10.0 MiB");
}

TEST(MemoryNeedsTest, ShortageTellsOfTheBatchThatRecomputationAllows) {
  EXPECT_EQ(DescribeShortage(kNeeds, {{"training.recompute: true", kRecomputing}}, 4096, 9 << 20),
            "needs 12.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 4.0 MiB; free: 9.0 MiB. Want "
            "training.batch_size of at most 1023 (820 with accumulate_batches times 5 keeps the examples per step); "
            "or training.recompute: true and training.batch_size of at most 2048 (2048 with accumulate_batches times 2 "
            "keeps the examples per step)");
}

TEST(MemoryNeedsTest, ShortageWhereOnlyRecomputationFitsSaysSo) {
  EXPECT_EQ(DescribeShortage(kNeeds, {{"training.recompute: true", kRecomputing}}, 2, (8 << 20) + 513),
            "needs 8.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 3.0 KiB; free: 8.0 MiB. Want "
            "training.recompute: true and training.batch_size of at most 1 (1 with accumulate_batches times 2 keeps "
            "the examples per step)");
}

// 4 MiB of weights, 4 MiB of gradients, 1 KiB of labels and 4 KiB of activations for each example.
constexpr MemoryNeeds kInFloats = {.weights = 1 << 20, .gradients = 1 << 20, .per_example = 256, .activations = 1024};

MemoryNeeds InBf16(MemoryNeeds needs) {
  needs.activation_type = ElementType::kBf16;
  return needs;
}

TEST(MemoryNeedsTest, ActivationsIn16BitsTakeHalfAndTheWeightsHaveACopyWithThem) {
  EXPECT_EQ(kInFloats.At(100).weights, 4 << 20);
  EXPECT_EQ(kInFloats.At(100).activations, 500 << 10);
  EXPECT_EQ(InBf16(kInFloats).At(100).weights, 6 << 20);
  EXPECT_EQ(InBf16(kInFloats).At(100).gradients, 4 << 20);
  EXPECT_EQ(InBf16(kInFloats).At(100).activations, 300 << 10);
  EXPECT_EQ(InBf16(kInFloats).LargestBatch((10 << 20) + (300 << 10)), 100);
}

TEST(MemoryNeedsTest, ShortageTellsOfThePrecisionThatIsEnough) {
  EXPECT_EQ(DescribeShortage(kInFloats, {{"training.precision: BF16", InBf16(kInFloats)}}, 2048, 17 << 20),
            "needs 18.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 10.0 MiB; free: 17.0 MiB. Want "
            "training.batch_size of at most 1843 (1024 with accumulate_batches times 2 keeps the examples per step); "
            "or training.precision: BF16, with which this batch needs 16.0 MiB");
}

// The 16-bit copies of the weights take more memory than the smaller activations save.
TEST(MemoryNeedsTest, ShortageDoesNotTellOfAPrecisionThatIsNoHelp) {
  EXPECT_EQ(DescribeShortage(kInFloats, {{"training.precision: BF16", InBf16(kInFloats)}}, 2, (8 << 20) + (5 << 10)),
            "needs 8.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 10.0 KiB; free: 8.0 MiB. Want "
            "training.batch_size of at most 1 (1 with accumulate_batches times 2 keeps the examples per step)");
}

TEST(MemoryNeedsTest, ShortageThatCameFromElsewhereSaysSo) {
  EXPECT_EQ(DescribeShortage(kNeeds, {}, 1, 1 << 30),
            "needs 8.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 2.0 KiB; free: 1.0 GiB. Another "
            "process took memory meanwhile; want no other process on the device");
}

}  // namespace
}  // namespace ballast
