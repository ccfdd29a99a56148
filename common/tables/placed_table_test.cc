// SPDX-License-Identifier: Apache-2.0
#include "common/tables/placed_table.h"

#include "common/tables/table_spec_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using testing::ElementsAre;

v1::TableSpec SmallTable() {
  v1::TableSpec spec = SgdTable(1, "ids", 16);
  spec.set_range_bits(6);
  return spec;
}

TEST(PlacedTableTest, SpreadsRangesEvenlyAndContiguously) {
  EXPECT_THAT(SpreadRanges(SmallTable(), 3).spans,
              ElementsAre(RangeSpan{0, 21, 0}, RangeSpan{21, 21, 1}, RangeSpan{42, 22, 2}));
  EXPECT_THAT(SpreadRanges(SgdTable(1, "ids", 16), 2).spans,
              ElementsAre(RangeSpan{0, 2048, 0}, RangeSpan{2048, 2048, 1}));
}

TEST(PlacedTableTest, GivesEachRangeOneOwnerEvenIfThereAreMoreShards) {
  const PlacedTable table = SpreadRanges(SmallTable(), 100);
  EXPECT_EQ(table.spans.size(), 64);
  EXPECT_TRUE(ReadPlacedTable(ToProto(table), 100).ok());
}

TEST(PlacedTableTest, KnowsTheOwnerOfEachRange) {
  const PlacedTable table = SpreadRanges(SmallTable(), 3);
  EXPECT_EQ(table.OwnerOf(0), 0);
  EXPECT_EQ(table.OwnerOf(20), 0);
  EXPECT_EQ(table.OwnerOf(21), 1);
  EXPECT_EQ(table.OwnerOf(41), 1);
  EXPECT_EQ(table.OwnerOf(42), 2);
  EXPECT_EQ(table.OwnerOf(63), 2);
}

TEST(PlacedTableTest, SurvivesTheWire) {
  const v1::PlacedTable proto = ToProto(SpreadRanges(SmallTable(), 3));
  EXPECT_EQ(ToProto(ReadPlacedTable(proto, 3).value()).SerializeAsString(), proto.SerializeAsString());
}

TEST(PlacedTableTest, GivesAShardItsOwnSpansAlone) {
  PlacedTable table = SpreadRanges(SmallTable(), 3);
  table.spans[2].shard = 0;
  const v1::PlacedTable part = PartOfShard(table, 0);
  ASSERT_EQ(part.spans_size(), 2);
  EXPECT_EQ(part.spans(0).first(), 0);
  EXPECT_EQ(part.spans(1).first(), 42);
  EXPECT_EQ(part.spec().name(), "ids");
}

// Two spans of 32 ranges each, of which each test spoils one.
class SpoiledTableTest : public testing::Test {
 protected:
  std::string Fault() const {
    const absl::StatusOr<PlacedTable> table = ReadPlacedTable(proto_, 2);
    EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(table.status().message());
  }

  v1::PlacedTable proto_ = ToProto(SpreadRanges(SmallTable(), 2));
};

TEST_F(SpoiledTableTest, RefusesAGap) {
  proto_.mutable_spans(1)->set_first(33);
  EXPECT_EQ(Fault(), "shard map: table \"ids\": got 32 ranges from 33, want at least 1 from 32 within 64");
}

TEST_F(SpoiledTableTest, RefusesAnOverlap) {
  proto_.mutable_spans(1)->set_first(31);
  EXPECT_EQ(Fault(), "shard map: table \"ids\": got 32 ranges from 31, want at least 1 from 32 within 64");
}

TEST_F(SpoiledTableTest, RefusesAnEmptySpan) {
  proto_.mutable_spans(0)->set_count(0);
  EXPECT_EQ(Fault(), "shard map: table \"ids\": got 0 ranges from 0, want at least 1 from 0 within 64");
}

TEST_F(SpoiledTableTest, RefusesRangesThatTheTableDoesNotHave) {
  proto_.mutable_spans(1)->set_count(0xffffffff);
  EXPECT_EQ(Fault(), "shard map: table \"ids\": got 4294967295 ranges from 32, want at least 1 from 32 within 64");
}

TEST_F(SpoiledTableTest, RefusesRangesThatNobodyOwns) {
  proto_.mutable_spans()->RemoveLast();
  EXPECT_EQ(Fault(), "shard map: table \"ids\": got spans of 32 ranges, want 64");
}

TEST_F(SpoiledTableTest, RefusesAShardBeyondTheMap) {
  proto_.mutable_spans(1)->set_shard(2);
  EXPECT_EQ(Fault(), "shard map: table \"ids\": range 32 is on shard 2 of 2");
}

TEST_F(SpoiledTableTest, RefusesAnInvalidSpec) {
  proto_.mutable_spec()->set_dim(0);
  EXPECT_EQ(Fault(), "table \"ids\": dim: got 0, want 1 to 4096");
}

}  // namespace
}  // namespace ballast
