// SPDX-License-Identifier: Apache-2.0
#include "client/rows/row_delta_reader.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "common/tables/row_chain.h"
#include "common/tables/row_hash.h"
#include "common/tables/table_spec_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kTable = 1;
constexpr uint32_t kDim = 1;

v1::TableSpec Spec() {
  v1::TableSpec spec = SgdTable(kTable, "rows", kDim);
  spec.set_range_bits(6);
  return spec;
}

uint32_t RangeOfId(uint64_t id) { return RangeOf(RowHash(id, kTable), 6); }

// Ids of range 3, in the order of their hashes.
std::vector<uint64_t> IdsOfRange() {
  std::vector<uint64_t> ids;
  for (uint64_t id = 0; ids.size() < 8; ++id) {
    if (RangeOfId(id) == 3) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end(), [](uint64_t a, uint64_t b) { return RowHash(a, kTable) < RowHash(b, kTable); });
  return ids;
}

template <typename Element>
std::string BytesOf(const std::vector<Element>& elements) {
  return std::string(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(Element));
}

// Makes the deltas of range 3, as a shard does.
class Sender {
 public:
  v1::RowDelta Whole(const std::vector<uint64_t>& ids, const std::vector<float>& values, bool continues = false) {
    if (!inside_) chain_ = 0;
    return Delta(0, ids, values, {}, continues);
  }
  v1::RowDelta Next(const std::vector<uint64_t>& ids, const std::vector<float>& values,
                    const std::vector<uint64_t>& evicted = {}, bool continues = false) {
    if (!inside_) ++position_;
    return Delta(position_ - 1, ids, values, evicted, continues);
  }

 private:
  v1::RowDelta Delta(uint64_t from, const std::vector<uint64_t>& ids, const std::vector<float>& values,
                     const std::vector<uint64_t>& evicted, bool continues) {
    v1::RowDelta delta;
    delta.set_table_id(kTable);
    delta.set_range(3);
    delta.set_from_position(from);
    delta.set_to_position(position_);
    delta.set_ids(BytesOf(ids));
    delta.set_evicted(BytesOf(evicted));
    delta.set_encoding(v1::ENCODING_FP32);
    delta.set_payload(BytesOf(values));
    delta.set_continues(continues);
    inside_ = continues;
    Sign(delta);
    return delta;
  }

 public:
  // Sets the chain after a change of the contents.
  void Sign(v1::RowDelta& delta) {
    chain_ = NextRowChain(chain_, delta.ids(), delta.evicted(), delta.payload());
    delta.set_chain(chain_);
  }

 private:
  uint64_t position_ = 1, chain_ = 0;
  bool inside_ = false;
};

class RowDeltaReaderTest : public testing::Test {
 protected:
  RangeUpdate Taken(const v1::RowDelta& delta) {
    absl::StatusOr<std::optional<RangeUpdate>> update = reader_->Take(delta);
    EXPECT_TRUE(update.ok()) << update.status();
    if (!update.ok()) return {};
    EXPECT_TRUE(update->has_value());
    return update->value_or(RangeUpdate());
  }

  // Expects the delta to be rejected, and the range to be without a position until it is sent whole.
  void ExpectRejected(const v1::RowDelta& delta, const std::string& why) {
    const absl::StatusOr<std::optional<RangeUpdate>> update = reader_->Take(delta);
    EXPECT_EQ(update.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(update.status().message()), HasSubstr(why));
    EXPECT_THAT(reader_->positions(), IsEmpty());
    Sender again;
    EXPECT_THAT(Taken(again.Whole({ids_[0]}, {5})).ids, ElementsAre(ids_[0]));
    EXPECT_EQ(reader_->positions().size(), 1u);
  }

  const std::vector<uint64_t> ids_ = IdsOfRange();
  std::optional<RowDeltaReader> reader_{std::in_place, Spec(), 2, 4};
  Sender sender_;
};

TEST_F(RowDeltaReaderTest, TakesARangeAndItsChanges) {
  const RangeUpdate whole = Taken(sender_.Whole({ids_[0], ids_[1]}, {1, 2}));
  EXPECT_TRUE(whole.replaces);
  EXPECT_EQ(whole.range, 3u);
  EXPECT_THAT(whole.ids, ElementsAre(ids_[0], ids_[1]));
  EXPECT_THAT(whole.values, ElementsAre(1, 2));
  const RangeUpdate change = Taken(sender_.Next({ids_[1]}, {7}, {ids_[0]}));
  EXPECT_FALSE(change.replaces);
  EXPECT_THAT(change.ids, ElementsAre(ids_[1]));
  EXPECT_THAT(change.evicted, ElementsAre(ids_[0]));
  ASSERT_EQ(reader_->positions().size(), 1u);
  EXPECT_EQ(reader_->positions()[0].range(), 3u);
  EXPECT_EQ(reader_->positions()[0].position(), 2u);
  EXPECT_EQ(reader_->received(), 1u);
}

TEST_F(RowDeltaReaderTest, PartsAreOneUpdate) {
  EXPECT_EQ(*reader_->Take(sender_.Whole({ids_[0]}, {1}, true)), std::nullopt);
  EXPECT_THAT(reader_->positions(), IsEmpty());
  EXPECT_THAT(Taken(sender_.Whole({ids_[1]}, {2})).values, ElementsAre(1, 2));
  EXPECT_EQ(*reader_->Take(sender_.Next({}, {}, {ids_[0]}, true)), std::nullopt);
  EXPECT_EQ(reader_->positions()[0].position(), 1u) << "the change is not complete";
  const RangeUpdate change = Taken(sender_.Next({ids_[2]}, {3}));
  EXPECT_THAT(change.evicted, ElementsAre(ids_[0]));
  EXPECT_THAT(change.ids, ElementsAre(ids_[2]));
}

TEST_F(RowDeltaReaderTest, PartsOfAStreamThatEndedAreForgotten) {
  Taken(sender_.Whole({ids_[0]}, {1}));
  Sender before = sender_;
  ASSERT_TRUE(reader_->Take(sender_.Next({ids_[1]}, {2}, {}, true)).ok());
  reader_->EndStream();
  EXPECT_THAT(Taken(before.Next({ids_[3]}, {4})).ids, ElementsAre(ids_[3]));
}

TEST_F(RowDeltaReaderTest, ALostDeltaIsFound) {
  Taken(sender_.Whole({ids_[0]}, {1}));
  sender_.Next({ids_[0]}, {2});
  ExpectRejected(sender_.Next({ids_[0]}, {3}), "want one from 1, where the copy is");
}

TEST_F(RowDeltaReaderTest, ARepeatedDeltaIsFound) {
  Taken(sender_.Whole({ids_[0]}, {1}));
  const v1::RowDelta delta = sender_.Next({ids_[0]}, {2});
  Taken(delta);
  ExpectRejected(delta, "want one from 2, where the copy is");
}

TEST_F(RowDeltaReaderTest, AnotherOrderIsFound) {
  Taken(sender_.Whole({ids_[0]}, {1}));
  const v1::RowDelta first = sender_.Next({ids_[0]}, {2});
  ExpectRejected(sender_.Next({ids_[0]}, {3}), "want one from 1");
}

TEST_F(RowDeltaReaderTest, ADeltaOfAnotherCopyIsFound) {
  Taken(sender_.Whole({ids_[0]}, {1}));
  Sender other;
  other.Whole({ids_[0]}, {9});
  ExpectRejected(other.Next({ids_[0]}, {2}), "got chain");
}

TEST_F(RowDeltaReaderTest, ALostPartIsFound) {
  ASSERT_TRUE(reader_->Take(sender_.Whole({ids_[0]}, {1}, true)).ok());
  sender_.Whole({ids_[1]}, {2}, true);
  ExpectRejected(sender_.Whole({ids_[2]}, {3}), "got chain");
}

TEST_F(RowDeltaReaderTest, PartsOfTwoDeltasAreNotMixed) {
  Taken(sender_.Whole({ids_[0]}, {1}));
  ASSERT_TRUE(reader_->Take(sender_.Next({ids_[1]}, {2}, {}, true)).ok());
  v1::RowDelta part = sender_.Next({ids_[2]}, {3});
  part.set_to_position(3);
  ExpectRejected(part, "want the next part of the one from 1 to 2");
}

TEST_F(RowDeltaReaderTest, AnyDamagedBitOfTheContentsIsFound) {
  const v1::RowDelta whole = sender_.Whole({ids_[0], ids_[1]}, {1, 2});
  for (std::string* (v1::RowDelta::*field)() : {&v1::RowDelta::mutable_ids, &v1::RowDelta::mutable_payload}) {
    for (size_t bit = 0; bit < 128; ++bit) {
      v1::RowDelta damaged = whole;
      std::string& bytes = *(damaged.*field)();
      if (bit / 8 >= bytes.size()) continue;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
      EXPECT_EQ(reader_->Take(damaged).status().code(), absl::StatusCode::kDataLoss) << bit;
    }
  }
  EXPECT_EQ(reader_->received(), 0u);
  Taken(whole);
}

TEST_F(RowDeltaReaderTest, ContentsThatCannotBeRowsAreFound) {
  const auto rejected = [&](auto change, const std::string& why) {
    Sender sender;
    v1::RowDelta delta = Sender().Whole({ids_[0], ids_[1]}, {1, 2});
    change(delta);
    sender.Sign(delta);
    ExpectRejected(delta, why);
    reader_.emplace(Spec(), 2, 4);
  };
  rejected([&](v1::RowDelta& delta) { delta.set_ids(BytesOf<uint64_t>({ids_[1], ids_[0]})); }, "order of hashes");
  rejected([&](v1::RowDelta& delta) { delta.set_ids(BytesOf<uint64_t>({ids_[0], ids_[0]})); }, "order of hashes");
  rejected([&](v1::RowDelta& delta) { delta.mutable_ids()->pop_back(); }, "want 8 for each");
  rejected([&](v1::RowDelta& delta) { delta.mutable_payload()->pop_back(); }, "payload");
  rejected([&](v1::RowDelta& delta) { delta.mutable_payload()->resize(4); }, "payload");
  rejected([&](v1::RowDelta& delta) { delta.set_encoding(v1::ENCODING_INT8); }, "want fp32, fp16 or bf16");
  rejected([&](v1::RowDelta& delta) { delta.set_range(4); }, "is not in the range");
  rejected([&](v1::RowDelta& delta) { delta.set_to_position(0); }, "want a later position");
  uint64_t elsewhere = 0;
  while (RangeOfId(elsewhere) == 3) ++elsewhere;
  rejected([&](v1::RowDelta& delta) { delta.set_evicted(BytesOf<uint64_t>({elsewhere})); }, "evicted id");
}

TEST_F(RowDeltaReaderTest, RangesThatWereNotAskedForAreRefused) {
  v1::RowDelta delta = sender_.Whole({}, {});
  for (uint32_t range : {0u, 1u, 6u, 4000u}) {
    delta.set_range(range);
    EXPECT_THAT(std::string(reader_->Take(delta).status().message()), HasSubstr("want ranges 2 to 5 of table 1"));
  }
  delta.set_range(3);
  delta.set_table_id(2);
  EXPECT_FALSE(reader_->Take(delta).ok());
}

}  // namespace
}  // namespace ballast
