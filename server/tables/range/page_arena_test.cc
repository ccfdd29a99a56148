// SPDX-License-Identifier: Apache-2.0
#include "server/tables/range/page_arena.h"

#include <cstring>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
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

TEST(PageArenaTest, PagesAreReadyAheadAndKeepWhatIsWritten) {
  constexpr size_t kSegment = 65536, kSegments = 1024;
  PageArena arena(80 * kMiB);
  std::vector<char*> segments;
  for (size_t i = 0; i < kSegments; ++i) {
    segments.push_back(static_cast<char*>(arena.Allocate(kSegment)));
    ASSERT_NE(segments.back(), nullptr);
    std::memset(segments.back(), static_cast<int>(i % 127) + 1, kSegment);
  }
  const absl::Time give_up = absl::Now() + absl::Seconds(10);
  while (arena.ahead_bytes() < 4 * kMiB && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
  // A kernel before 5.14 has no such call.
  EXPECT_TRUE(arena.ahead_bytes() == 4 * kMiB || arena.ahead_bytes() == 0) << arena.ahead_bytes();
  for (size_t i = 0; i < kSegments; ++i) {
    EXPECT_EQ(segments[i][0], static_cast<char>(i % 127 + 1));
    EXPECT_EQ(std::memcmp(segments[i], segments[i] + 1, kSegment - 1), 0);
  }
}

TEST(PageArenaTest, NoPageIsReadyAboveTheLimit) {
  PageArena arena(64 * kMiB);
  for (int i = 0; i < 1008; ++i) ASSERT_NE(arena.Allocate(65536), nullptr);
  const absl::Time give_up = absl::Now() + absl::Milliseconds(200);
  while (absl::Now() < give_up) {
    EXPECT_LE(arena.page_bytes() + arena.ahead_bytes(), arena.limit_bytes());
    absl::SleepFor(absl::Milliseconds(10));
  }
}

TEST(PageArenaTest, ALimitBelowAPageAllowsNothing) {
  PageArena arena(2 * kMiB - 1);
  EXPECT_EQ(arena.Allocate(64), nullptr);
}

}  // namespace
}  // namespace ballast
