// SPDX-License-Identifier: Apache-2.0
#include "client/watch/row_copy.h"

#include <array>

#include "common/tables/row_hash.h"
#include "common/tables/table_spec_fixture.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr uint32_t kTable = 1;

RangeUpdate Update(const std::vector<uint64_t>& ids, const std::vector<float>& values) {
  RangeUpdate update;
  update.table_id = kTable;
  update.range = RangeOf(RowHash(ids[0], kTable), 12);
  update.ids = ids;
  update.values = values;
  return update;
}

class RowCopyTest : public testing::Test {
 protected:
  // The row's values; {-1, -1} if it does not exist.
  std::array<float, 2> Row(uint64_t id) const {
    std::array<float, 2> values = {-1, -1};
    copy_.Find(id, absl::MakeSpan(values));
    return values;
  }

  RowCopy copy_{SgdTable(kTable, "rows", 2)};
};

using Values = std::array<float, 2>;

TEST_F(RowCopyTest, HasTheNewestValues) {
  EXPECT_EQ(Row(7), (Values{-1, -1}));
  copy_.Apply(Update({7}, {1, 2}));
  copy_.Apply(Update({8}, {3, 4}));
  EXPECT_EQ(Row(7), (Values{1, 2}));
  copy_.Apply(Update({7}, {5, 6}));
  EXPECT_EQ(Row(7), (Values{5, 6}));
  EXPECT_EQ(Row(8), (Values{3, 4}));
  EXPECT_EQ(copy_.rows(), 2u);
}

TEST_F(RowCopyTest, EvictedRowsAreRemovedBeforeOthersAreSet) {
  copy_.Apply(Update({7}, {1, 2}));
  RangeUpdate update = Update({7}, {3, 4});
  update.evicted = {7};
  copy_.Apply(update);
  EXPECT_EQ(Row(7), (Values{3, 4}));
  update.ids.clear();
  update.values.clear();
  copy_.Apply(update);
  EXPECT_EQ(Row(7), (Values{-1, -1}));
}

TEST_F(RowCopyTest, AWholeRangeReplacesItsRowsAlone) {
  copy_.Apply(Update({7}, {1, 2}));
  copy_.Apply(Update({8}, {3, 4}));
  RangeUpdate update = Update({7}, {});
  update.replaces = true;
  update.ids.clear();
  copy_.Apply(update);
  EXPECT_EQ(Row(7), (Values{-1, -1}));
  EXPECT_EQ(Row(8), (Values{3, 4}));
}

}  // namespace
}  // namespace ballast
