// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/embedding.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "common/simd/instruction_set.h"

// The conformance suite checks the results; here they are compared between instruction sets.
namespace ballast {
namespace {

constexpr int64_t kDims[] = {1, 4, 7, 8, 16, 20, 33, 64};

std::vector<float> Values(int64_t n, int64_t seed) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>((i * i * 31 + i * 7 + seed) % 1009) / 509 - 1);
  return values;
}

// Expects that `compute` writes the same bits with each instruction set of this machine.
void ExpectSameBits(size_t elements, const std::function<void(float*)>& compute) {
  std::vector<std::vector<float>> results;
  for (const InstructionSet set : AvailableInstructionSets()) {
    const ScopedInstructionSet chosen(set);
    results.emplace_back(elements, 7.0f);
    compute(results.back().data());
    EXPECT_EQ(results.back(), results.front()) << static_cast<int>(set);
  }
}

TEST(EmbeddingTest, PoolRowsGivesTheSameBitsWithEveryInstructionSet) {
  constexpr int64_t kExamples = 9, kFields = 3, kRows = 11;
  std::vector<uint32_t> ends, places;
  for (uint32_t bag = 0; bag < kExamples * kFields; ++bag) {
    for (uint32_t place = 0; place < bag % 4; ++place) places.push_back((bag * bag + place * 3) % kRows);
    ends.push_back(static_cast<uint32_t>(places.size()));
  }
  const RowBags bags{ends, places, kFields, true};
  for (const int64_t dim : kDims) {
    SCOPED_TRACE(dim);
    const PooledColumns pooled = {kExamples, 2 + kFields * dim, 1, dim};
    const std::vector<float> table = Values(kRows * dim, 1), dy = Values(kExamples * pooled.columns, 2);
    ExpectSameBits(dy.size(), [&](float* y) { PoolRows(table.data(), bags, pooled, y); });
    ExpectSameBits(table.size(), [&](float* dtable) { PoolRowsBackward(dy.data(), bags, pooled, kRows, dtable); });
  }
}

TEST(EmbeddingTest, DotInteractionGivesTheSameBitsWithEveryInstructionSet) {
  for (const int64_t vectors : {1, 2, 16, 17, 27}) {
    for (const int64_t dim : kDims) {
      SCOPED_TRACE(testing::Message() << vectors << "x" << dim);
      const InteractionShape shape = {3, vectors, dim};
      const std::vector<float> x = Values(3 * vectors * dim, 1), dy = Values(3 * (dim + shape.pairs()), 2);
      ExpectSameBits(dy.size(), [&](float* y) { DotInteraction(shape, x.data(), y); });
      ExpectSameBits(x.size(), [&](float* dx) { DotInteractionBackward(shape, x.data(), dy.data(), dx); });
    }
  }
}

}  // namespace
}  // namespace ballast
