// SPDX-License-Identifier: Apache-2.0
#include "server/tables/row_inspection.h"

#include <vector>

#include "common/tables/row_hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kTable = 5;

// Adds rows of two weights by the number of their updates.
void Add(RowInspection& inspection, uint64_t id, uint32_t updates, uint32_t last_step, float weight = 0) {
  const std::vector<float> weights = {weight, 0};
  inspection.Add({RowHash(id, kTable), weights, {}, {.last_step = last_step, .version = updates}});
}

TEST(RowInspectionTest, CountsRowsByTheirUpdatesAndAge) {
  RowInspection inspection(kTable, {.now = 10}, 0);
  for (uint32_t updates : {1, 1, 2, 16, 17, 32, 33, 64, 65}) Add(inspection, updates, updates, 10 - updates % 3);
  const v1::RowStatistics& statistics = inspection.statistics();
  EXPECT_EQ(statistics.rows(), 9u);
  EXPECT_EQ(statistics.updates(), 231u);
  EXPECT_THAT(statistics.rows_by_updates(), ElementsAre(2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 2, 1));
  EXPECT_THAT(statistics.updates_by_updates(),
              ElementsAre(2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 49, 97, 65));
  EXPECT_THAT(statistics.rows_by_age(), ElementsAre(1, 4, 4));
  EXPECT_TRUE(inspection.Top().empty());
}

TEST(RowInspectionTest, LeavesOutExpiredRows) {
  RowInspection inspection(kTable, {.now = 10, .max_age = 4}, 10);
  Add(inspection, 1, 3, 6);
  Add(inspection, 2, 3, 5);
  EXPECT_EQ(inspection.statistics().rows(), 1u);
  EXPECT_EQ(inspection.Top().size(), 1u);
}

TEST(RowInspectionTest, FindsTheRowsWithTheMostUpdates) {
  RowInspection inspection(kTable, {.now = 10}, 3);
  for (uint64_t id = 1; id <= 100; ++id) Add(inspection, id, (id * 37) % 101, 7, 3.0f);
  std::vector<uint32_t> updates;
  for (const v1::HotRow& row : inspection.Top()) {
    updates.push_back(row.updates());
    EXPECT_EQ(row.id() * 37 % 101, row.updates());
    EXPECT_EQ(row.age(), 3u);
    EXPECT_EQ(row.norm(), 3.0f);
  }
  EXPECT_THAT(updates, ElementsAre(100, 99, 98));
  EXPECT_EQ(inspection.statistics().norm_sum(), 300);
  EXPECT_EQ(inspection.statistics().norm_max(), 3);
}

TEST(RowInspectionTest, CountsIdsThatWait) {
  RowInspection inspection(kTable, {}, 0);
  inspection.AddWaiting(5, {3, 2});
  inspection.AddWaiting(7, {1, 0, 6});
  EXPECT_EQ(inspection.statistics().waiting(), 12u);
  EXPECT_THAT(inspection.statistics().waiting_by_uses(), ElementsAre(4, 2, 6));
}

}  // namespace
}  // namespace ballast
