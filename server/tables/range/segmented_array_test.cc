// SPDX-License-Identifier: Apache-2.0
#include "server/tables/range/segmented_array.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(SegmentedArrayTest, ElementsOfAllSizesKeepTheirValuesAndAddresses) {
  for (size_t bytes : {24, 64, 80, 532, 20'000, 49'164, 65'536}) {
    PageArena arena(1024 * kMiB);
    SegmentedArray array(&arena, bytes);
    const uint64_t elements = bytes > 1000 ? 500 : 20'000;
    std::vector<char*> addresses;
    for (uint64_t i = 0; i < elements; ++i) {
      ASSERT_TRUE(array.Reserve(i + 1));
      addresses.push_back(array.At(i));
      std::memcpy(array.At(i), &i, sizeof(i));
      std::memcpy(array.At(i) + bytes - sizeof(i), &i, sizeof(i));
    }
    for (uint64_t i = 0; i < elements; ++i) {
      ASSERT_EQ(array.At(i), addresses[i]);
      uint64_t first, last;
      std::memcpy(&first, array.At(i), sizeof(first));
      std::memcpy(&last, array.At(i) + bytes - sizeof(last), sizeof(last));
      ASSERT_EQ(first, i);
      ASSERT_EQ(last, i);
    }
  }
}

TEST(SegmentedArrayTest, AtMostAQuarterIsUnused) {
  PageArena arena(64 * kMiB);
  SegmentedArray array(&arena, 80);
  for (uint64_t i = 16; i < 20'000; ++i) {
    ASSERT_TRUE(array.Reserve(i));
    ASSERT_LE(array.capacity(), i + i / 4);
  }
}

TEST(SegmentedArrayTest, KeepsItsElementsIfTheArenaIsFull) {
  PageArena arena(2 * kMiB);
  SegmentedArray array(&arena, 64);
  ASSERT_TRUE(array.Reserve(1));
  *array.At(0) = 17;
  EXPECT_FALSE(array.Reserve(40'000));
  EXPECT_EQ(*array.At(0), 17);
  EXPECT_LE(array.capacity(), 32'768u);
}

TEST(SegmentedArrayTest, ReturnsItsMemory) {
  PageArena arena(2 * kMiB);
  {
    SegmentedArray array(&arena, 80);
    ASSERT_TRUE(array.Reserve(5000));
    EXPECT_GE(arena.segment_bytes(), 400'000u);
  }
  EXPECT_EQ(arena.segment_bytes(), 0u);
}

}  // namespace
}  // namespace ballast
