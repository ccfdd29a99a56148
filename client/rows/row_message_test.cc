// SPDX-License-Identifier: Apache-2.0
#include "client/rows/row_message.h"

#include <cstring>
#include <numeric>

#include "common/tables/row_hash.h"
#include "common/tables/table_spec_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using testing::ElementsAre;

// A push of rows 0, 1, ... of a table of 16 weights.
class RowMessageTest : public testing::Test {
 protected:
  std::shared_ptr<const TableRows> Push(size_t count, v1::Encoding encoding = v1::ENCODING_FP32) {
    ids_.resize(count);
    std::iota(ids_.begin(), ids_.end(), 0);
    gradients_.resize(count * 16);
    return *OrderRows(spec_, RowPush{1, ids_, gradients_, {}}, encoding);
  }

  static std::vector<size_t> Sizes(const std::vector<std::vector<RowRun>>& messages) {
    std::vector<size_t> sizes;
    for (const std::vector<RowRun>& runs : messages) {
      for (const RowRun& run : runs) sizes.push_back(run.size());
    }
    return sizes;
  }

  static size_t EncodedBytes(const std::vector<RowRun>& runs) {
    std::vector<RowPayload> payloads;
    for (const RowRun& run : runs) payloads.push_back(EncodeRun(run));
    return EncodeRowGradients(v1::PushRowsRequest(), payloads).Length();
  }

  const v1::TableSpec spec_ = SgdTable(1, "ids", 16);
  std::vector<uint64_t> ids_;
  std::vector<float> gradients_;
};

// A row takes 72 bytes, and 4 MiB are 58,249 of them and 376 bytes.
TEST_F(RowMessageTest, FillsAMessageOf4MiB) {
  const auto rows = Push(58'250);
  EXPECT_THAT(Sizes(PackRows({{{rows, 0, 58'249}}})), ElementsAre(58'249));
  EXPECT_THAT(Sizes(PackRows({{{rows, 0, 58'250}}})), ElementsAre(58'249, 1));
  EXPECT_LE(EncodedBytes({{rows, 0, 58'249}}), 4 << 20);
  EXPECT_GT(EncodedBytes({{rows, 0, 58'249}}), (4 << 20) - 376);
}

TEST_F(RowMessageTest, HasRoomForMoreRowsIfTheyAreShorter) {
  // 40 bytes each.
  EXPECT_THAT(Sizes(PackRows({{{Push(110'000, v1::ENCODING_BF16), 0, 110'000}}})), ElementsAre(104'849, 5'151));
}

TEST_F(RowMessageTest, SendsARowThatIsLargerThanTheLimitAlone) {
  EXPECT_THAT(Sizes(PackRows({{{Push(3), 0, 3}}}, 100)), ElementsAre(1, 1, 1));
}

TEST_F(RowMessageTest, HasEachTableOnceInAMessage) {
  const auto rows = Push(100);
  const std::vector<std::vector<RowRun>> messages = PackRows({{{rows, 0, 30}, {rows, 60, 100}}});
  ASSERT_EQ(messages.size(), 2);
  EXPECT_EQ(messages[1][0].begin, 60);
}

TEST_F(RowMessageTest, PacksSeveralTablesTogether) {
  const auto first = Push(10);
  v1::TableSpec spec = SgdTable(2, "more", 16);
  const std::shared_ptr<const TableRows> second = *OrderRows(spec, RowPush{2, ids_, gradients_, {}}, v1::ENCODING_FP32);
  ASSERT_EQ(PackRows({{{first, 0, 10}, {second, 0, 10}}}).size(), 1);
}

TEST_F(RowMessageTest, SplitsRowsByTheOwnersOfTheirRanges) {
  const auto rows = Push(1'000);
  PlacedTable placed = SpreadRanges(spec_, 3);
  // Shard 0 has the first and the last third.
  placed.spans[2].shard = 0;
  std::vector<std::vector<RowRun>> by_shard(3);
  SplitByShard(placed, rows, by_shard);
  size_t count = 0;
  for (uint32_t shard = 0; shard < 3; ++shard) {
    for (const RowRun& run : by_shard[shard]) {
      count += run.size();
      for (size_t row = run.begin; row < run.end; ++row) {
        EXPECT_EQ(placed.OwnerOf(RangeOf(rows->order[row][0].hash, 12)), shard);
      }
    }
  }
  EXPECT_EQ(count, 1'000);
  EXPECT_EQ(by_shard[0].size(), 2);
  EXPECT_TRUE(by_shard[2].empty());
}

TEST_F(RowMessageTest, SendsOnlyEncodingsWithoutBlocks) {
  EXPECT_EQ(RowEncoding(v1::ENCODING_FP16), v1::ENCODING_FP16);
  EXPECT_EQ(RowEncoding(v1::ENCODING_BF16), v1::ENCODING_BF16);
  EXPECT_EQ(RowEncoding(v1::ENCODING_UNSPECIFIED), v1::ENCODING_FP32);
  EXPECT_EQ(RowEncoding(v1::ENCODING_INT8), v1::ENCODING_FP32);
  EXPECT_EQ(RowEncoding(v1::ENCODING_TOP_K), v1::ENCODING_FP32);
  EXPECT_EQ(RowEncoding(v1::ENCODING_SIGN), v1::ENCODING_FP32);
}

// A short payload may lie at an odd address.
TEST(EncodeRunTest, SendsTheSumsOfRepeatedIdsInFewRowsAndInMany) {
  for (const size_t rows : {1, 2, 1000}) {
    std::vector<uint64_t> ids(rows);
    std::iota(ids.begin(), ids.end(), 0);
    ids.push_back(0);
    std::vector<float> gradients(ids.size());
    std::iota(gradients.begin(), gradients.end(), 1);
    const auto ordered = OrderRows(SgdTable(1, "ids", 1), RowPush{1, ids, gradients, {}}, v1::ENCODING_FP32);
    ASSERT_TRUE(ordered.ok()) << ordered.status();
    const RowPayload payload = EncodeRun({*ordered, 0, rows});
    ASSERT_EQ(payload.bytes.size(), rows * sizeof(float));
    for (size_t row = 0; row < rows; ++row) {
      uint64_t id = 0;
      std::memcpy(&id, &payload.item.ids()[row * sizeof(id)], sizeof(id));
      float sum = 0;
      std::memcpy(&sum, payload.bytes.begin() + row * sizeof(sum), sizeof(sum));
      EXPECT_EQ(sum, id == 0 ? static_cast<float>(1 + ids.size()) : static_cast<float>(id + 1)) << id;
    }
  }
}

TEST(EncodeRunTest, SendsTheUsesOfRepeatedIdsToATableThatCountsThem) {
  v1::TableSpec spec = SgdTable(1, "ids", 1);
  const std::vector<uint64_t> ids = {7, 7, 7}, once = {7};
  const std::vector<float> gradients = {1, 2, 3};
  const std::vector<uint16_t> uses = {2, 3, 4};
  const auto encode = [&](const RowPush& push) {
    const auto rows = OrderRows(spec, push, v1::ENCODING_FP32);
    return EncodeRun({*rows, 0, 1}).item.uses();
  };
  const absl::Span<const float> one = absl::MakeConstSpan(gradients).first(1);
  EXPECT_EQ(encode({1, ids, gradients}), "");
  spec.mutable_admission()->set_min_uses(2);
  EXPECT_EQ(encode({1, ids, gradients}), std::string("\x03\x00", 2));
  EXPECT_EQ(encode({1, ids, gradients, {}, uses}), std::string("\x09\x00", 2));
  EXPECT_EQ(encode({1, once, one}), "") << "one use each needs no bytes";
  EXPECT_EQ(OrderRows(spec, RowPush{1, once, one, {}, uses}, v1::ENCODING_FP32).status().message(),
            "table \"ids\": uses: got 3 elements, want 1");
}

TEST(EncodeRunTest, SendsTheClockOfTheTableAtTheShard) {
  const std::vector<uint64_t> ids = {7};
  const std::vector<float> gradients = {1};
  RowClocks clocks;
  clocks.Add(1, 2, 40);
  clocks.Add(4, 0, 41);
  RowPush push{1, ids, gradients, {}};
  const auto encode = [&](uint32_t shard) {
    return EncodeRun({*OrderRows(SgdTable(1, "ids", 1), push, v1::ENCODING_FP32), 0, 1, shard}).item;
  };
  EXPECT_FALSE(encode(2).has_clock());
  push.clocks = &clocks;
  EXPECT_EQ(encode(2).clock(), 40);
  EXPECT_FALSE(encode(0).has_clock()) << "no rows of the table were pulled from that shard";
}

TEST_F(RowMessageTest, EveryMessageOfARunIsOfItsShard) {
  const auto rows = Push(100);
  std::vector<std::vector<RowRun>> by_shard(3);
  SplitByShard(SpreadRanges(spec_, 3), rows, by_shard);
  for (uint32_t shard = 0; shard < 3; ++shard) {
    const std::vector<std::vector<RowRun>> messages = PackRows(by_shard[shard], 1000);
    EXPECT_GT(messages.size(), 1u);
    for (const std::vector<RowRun>& runs : messages) EXPECT_EQ(runs[0].shard, shard);
  }
}

// The response to a pull of row 7, into values_, versions_ and present_.
class DecodeRowsTest : public testing::Test {
 protected:
  DecodeRowsTest() {
    response_.item.set_table_id(1);
    response_.item.set_rows(1);
    response_.item.set_encoding(v1::ENCODING_FP32);
    response_.item.set_versions(std::string("\x05\x00\x00\x00", 4));
    response_.item.set_present("\x01");
    response_.payload = {absl::string_view("\0\0\x80\x3f", 4), absl::string_view("\0\0\0\x40", 4)};
  }

  std::string Decode() {
    const absl::StatusOr<RowClocks> clocks = DecodeRows({&response_, 1}, {{{rows_, 0, 1, /*shard=*/3}}});
    if (!clocks.ok()) {
      EXPECT_THAT(values_, ElementsAre(9, 9)) << "written in spite of the error";
    }
    clocks_ = clocks.value_or(RowClocks());
    return clocks.status().ToString();
  }

  std::vector<uint64_t> ids_ = {7};
  std::vector<float> values_ = {9, 9};
  std::vector<uint32_t> versions_ = {9};
  std::vector<uint8_t> present_ = {9};
  RowClocks clocks_;
  std::shared_ptr<const TableRows> rows_ =
      *OrderRows(SgdTable(1, "ids", 2),
                 RowPull{1, ids_, absl::MakeSpan(values_), v1::RowQuery::MISSING_INITIAL, absl::MakeSpan(versions_),
                         absl::MakeSpan(present_)},
                 v1::ENCODING_FP32);
  ItemWithPayload<v1::RowValues> response_;
};

TEST_F(DecodeRowsTest, WritesValuesVersionsAndPresence) {
  EXPECT_EQ(Decode(), "OK");
  EXPECT_THAT(values_, ElementsAre(1, 2));
  EXPECT_THAT(versions_, ElementsAre(5));
  EXPECT_THAT(present_, ElementsAre(1));
}

TEST_F(DecodeRowsTest, TakesFloatsAtAnyAddress) {
  const absl::string_view message("-\0\0\x80\x3f\0\0\0\x40", 9);
  response_.payload = {message.substr(1)};
  EXPECT_EQ(Decode(), "OK");
  EXPECT_THAT(values_, ElementsAre(1, 2));
}

TEST_F(DecodeRowsTest, ReturnsTheClockOfTheTableAtTheShard) {
  EXPECT_EQ(Decode(), "OK");
  EXPECT_EQ(clocks_.Find(1, 3), std::nullopt);
  response_.item.set_clock(12);
  EXPECT_EQ(Decode(), "OK");
  EXPECT_EQ(clocks_.Find(1, 3), 12u);
}

TEST_F(DecodeRowsTest, TakesNoPresenceForAllRowsPresent) {
  response_.item.clear_present();
  EXPECT_EQ(Decode(), "OK");
  EXPECT_THAT(present_, ElementsAre(1));
}

TEST_F(DecodeRowsTest, RefusesAnotherTable) {
  response_.item.set_table_id(2);
  EXPECT_EQ(Decode(), "INTERNAL: response: table 1: got 1 rows of table 2, want 1");
}

TEST_F(DecodeRowsTest, RefusesAnotherNumberOfRows) {
  response_.item.set_rows(2);
  EXPECT_EQ(Decode(), "INTERNAL: response: table 1: got 2 rows of table 1, want 1");
}

TEST_F(DecodeRowsTest, RefusesAPayloadOfAnotherSize) {
  response_.payload.pop_back();
  EXPECT_THAT(Decode(), testing::StartsWith("INTERNAL: response: table 1: "));
}

TEST_F(DecodeRowsTest, RefusesVersionsThatDoNotFit) {
  response_.item.clear_versions();
  EXPECT_EQ(Decode(), "INTERNAL: response: table 1 has 0 bytes of versions, want 4");
}

TEST_F(DecodeRowsTest, RefusesPresenceThatDoesNotFit) {
  response_.item.set_present("\x01\x01");
  EXPECT_EQ(Decode(), "INTERNAL: response: table 1 has 2 bytes of present rows, want 1");
}

TEST_F(DecodeRowsTest, RefusesEncodingsInBlocks) {
  response_.item.set_encoding(v1::ENCODING_INT8);
  EXPECT_EQ(Decode(), "INTERNAL: response: table 1 is int8, want fp32, fp16 or bf16");
  response_.item.set_encoding(static_cast<v1::Encoding>(99));
  EXPECT_THAT(Decode(), testing::StartsWith("INTERNAL: response: table 1: "));
}

}  // namespace
}  // namespace ballast
