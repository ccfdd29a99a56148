// SPDX-License-Identifier: Apache-2.0
#include "server/tables/range/row_segments.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(RowLayoutTest, ARowOfSixteenWithOneSlotHasEightyBytes) {
  EXPECT_EQ(RowLayout(16, 1).bytes(), 80u);
  EXPECT_EQ(RowLayout(16, 0).bytes(), 80u);
  EXPECT_EQ(RowLayout(1, 2).bytes(), 24u);
  EXPECT_EQ(RowLayout(128, 1).bytes(), 528u);
  EXPECT_EQ(RowLayout(4096, 8192).bytes(), 49'168u);
}

TEST(RowLayoutTest, TheStateFollowsTheFloats) {
  float row[24] = {};
  const RowLayout layout(16, 1);
  layout.State(row).version = 5;
  EXPECT_EQ(layout.State(static_cast<const float*>(row)).version, 5u);
  EXPECT_EQ(reinterpret_cast<char*>(&layout.State(row)) - reinterpret_cast<char*>(row), 68);
}

TEST(RowSegmentsTest, AFreedPlaceIsTheNextToBeUsed) {
  PageArena arena(2 << 20);
  RowSegments rows(&arena, RowLayout(16, 1));
  for (uint32_t place = 0; place < 1000; ++place) ASSERT_EQ(rows.Allocate(), place);
  rows.Free(3);
  rows.Free(700);
  EXPECT_EQ(rows.Allocate(), 700u);
  EXPECT_EQ(rows.Allocate(), 3u);
  EXPECT_EQ(rows.Allocate(), 1000u);
}

TEST(RowSegmentsTest, HasNoPlaceWithoutMemory) {
  PageArena arena(0);
  RowSegments rows(&arena, RowLayout(16, 1));
  EXPECT_EQ(rows.Allocate(), std::nullopt);
}

}  // namespace
}  // namespace ballast
