// SPDX-License-Identifier: Apache-2.0
#include "server/tables/range/page_arena.h"

#include <cstring>

#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(PageArenaTest, SegmentsAreAlignedToLinesAndApart) {
  PageArena arena(4 * kMiB);
  char* first = static_cast<char*>(arena.Allocate(192));
  char* second = static_cast<char*>(arena.Allocate(64));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second) % 64, 0u);
  std::memset(first, 1, 192);
  std::memset(second, 2, 64);
  EXPECT_EQ(first[191], 1);
  EXPECT_EQ(arena.segment_bytes(), 256u);
}

TEST(PageArenaTest, CountsWholePages) {
  PageArena arena(8 * kMiB);
  EXPECT_EQ(arena.page_bytes(), 0u);
  arena.Allocate(64);
  EXPECT_EQ(arena.page_bytes(), 2 * kMiB);
  for (int i = 0; i < 32; ++i) ASSERT_NE(arena.Allocate(65536), nullptr);
  EXPECT_EQ(arena.page_bytes(), 4 * kMiB);
}

TEST(PageArenaTest, RefusesAboveItsLimitAndGoesOnWithWhatIsFreed) {
  PageArena arena(2 * kMiB);
  void* last = nullptr;
  for (int i = 0; i < 32; ++i) {
    last = arena.Allocate(65536);
    ASSERT_NE(last, nullptr);
  }
  EXPECT_EQ(arena.Allocate(64), nullptr);
  EXPECT_EQ(arena.page_bytes(), arena.limit_bytes());
  arena.Free(last, 65536);
  EXPECT_EQ(arena.segment_bytes(), 31 * 65536u);
  EXPECT_EQ(arena.Allocate(65536), last);
}

TEST(PageArenaTest, ALimitBelowAPageAllowsNothing) {
  PageArena arena(2 * kMiB - 1);
  EXPECT_EQ(arena.Allocate(64), nullptr);
}

}  // namespace
}  // namespace ballast
