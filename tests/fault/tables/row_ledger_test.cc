// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/tables/row_ledger.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using testing::UnorderedElementsAre;

// Two pushes: row 5 of the first table has 3 uses and 2 updates, row 7 one of each.
class RowLedgerTest : public testing::Test {
 protected:
  RowLedgerTest() {
    ledger_.Add(RowUses{{5, 7, 5}, {}});
    ledger_.Add(RowUses{{5}, {9}});
  }

  // Compares rows 5, 7 and 6, of which the last was never used.
  LedgerReport Compare() const { return ledger_.Compare(0, {ids_, values_, versions_, present_}); }

  RowLedger ledger_{2};
  const std::vector<uint64_t> ids_ = {5, 7, 6};
  std::vector<float> values_ = {3, 1, 0};
  std::vector<uint32_t> versions_ = {2, 1, 0};
  std::vector<uint8_t> present_ = {1, 1, 0};
};

TEST_F(RowLedgerTest, AcceptsRowsThatHaveEachUseOnce) {
  EXPECT_EQ(Compare().rows_checked, 3u);
  EXPECT_EQ(Compare().rows_wrong, 0u);
  EXPECT_EQ(Compare().first_wrong, "");
}

TEST_F(RowLedgerTest, ReportsAUseThatIsMissing) {
  values_[0] = 2;
  EXPECT_EQ(Compare().rows_wrong, 1u);
  EXPECT_EQ(Compare().first_wrong, "table \"count1\" row 5: got values 2, version 2; want values 3, version 2");
}

TEST_F(RowLedgerTest, ReportsAUseThatWasAppliedTwice) {
  values_[1] = 2;
  EXPECT_EQ(Compare().rows_wrong, 1u);
}

TEST_F(RowLedgerTest, ReportsAnUpdateThatIsMissingThoughTheValueIsRight) {
  versions_[0] = 1;
  EXPECT_EQ(Compare().rows_wrong, 1u);
}

TEST_F(RowLedgerTest, ReportsARowThatIsAbsent) {
  present_[1] = 0;
  EXPECT_EQ(Compare().rows_wrong, 1u);
}

TEST_F(RowLedgerTest, ReportsARowThatNobodyUsed) {
  present_[2] = 1;
  EXPECT_EQ(Compare().rows_wrong, 1u);
}

TEST_F(RowLedgerTest, ReportsOneWrongWeightOfMany) {
  const std::vector<uint64_t> ids = {9};
  std::vector<float> values(16, 1);
  const std::vector<uint32_t> versions = {1};
  const std::vector<uint8_t> present = {1};
  EXPECT_EQ(ledger_.Compare(1, {ids, values, versions, present}).rows_wrong, 0u);
  values[15] = 0;
  EXPECT_EQ(ledger_.Compare(1, {ids, values, versions, present}).rows_wrong, 1u);
}

TEST_F(RowLedgerTest, AddsTheUsesOfAnotherLedger) {
  RowLedger other(2);
  other.Add(RowUses{{7, 8}, {}});
  ledger_.Add(other);
  EXPECT_EQ(ledger_.UsesOf(0, 7), 2u);
  EXPECT_EQ(ledger_.most_uses(), 3u);
  EXPECT_THAT(ledger_.Ids(0), UnorderedElementsAre(5, 7, 8));
}

}  // namespace
}  // namespace ballast
