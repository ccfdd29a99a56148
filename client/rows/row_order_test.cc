// SPDX-License-Identifier: Apache-2.0
#include "client/rows/row_order.h"

#include <limits>
#include <map>
#include <numeric>

#include "common/tables/row_hash.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr uint32_t kTable = 3;

// The positions of each row's ids, in the order of the rows.
using Positions = std::vector<std::vector<uint32_t>>;

Positions PositionsOf(const RowOrder& order) {
  Positions positions(order.size());
  for (size_t row = 0; row < order.size(); ++row) {
    for (const RowOrder::Place& place : order[row]) positions[row].push_back(place.position);
  }
  return positions;
}

// The same with a map.
Positions Wanted(const std::vector<uint64_t>& ids) {
  std::map<uint64_t, std::vector<uint32_t>> by_hash;
  for (uint32_t i = 0; i < ids.size(); ++i) by_hash[RowHash(ids[i], kTable)].push_back(i);
  Positions positions;
  for (const auto& [hash, of_row] : by_hash) positions.push_back(of_row);
  return positions;
}

std::vector<uint64_t> Numbers(size_t count, uint64_t first = 0) {
  std::vector<uint64_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

TEST(RowOrderTest, OrdersAFewRowsByHash) {
  const std::vector<uint64_t> ids = Numbers(100);
  EXPECT_EQ(PositionsOf(RowOrder(kTable, ids)), Wanted(ids));
}

TEST(RowOrderTest, OrdersManyRowsByHash) {
  const std::vector<uint64_t> ids = Numbers(100'000);
  EXPECT_EQ(PositionsOf(RowOrder(kTable, ids)), Wanted(ids));
}

TEST(RowOrderTest, KeepsThePlacesOfRepeatedIdsInOrder) {
  std::vector<uint64_t> ids(10'000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i * i % 701;
  EXPECT_EQ(PositionsOf(RowOrder(kTable, ids)), Wanted(ids));
  ids.resize(300);
  EXPECT_EQ(PositionsOf(RowOrder(kTable, ids)), Wanted(ids));
}

TEST(RowOrderTest, TakesOneIdAHundredThousandTimes) {
  const RowOrder order(kTable, std::vector<uint64_t>(100'000, 7));
  ASSERT_EQ(order.size(), 1);
  ASSERT_EQ(order[0].size(), 100'000);
  EXPECT_EQ(order[0][99'999].position, 99'999);
}

TEST(RowOrderTest, OrdersRowsWhoseHashesBeginAlike) {
  // Descending hashes that differ in their last bits alone.
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 5'000; ++i) ids.push_back(RowIdOf(0xabcdef0000005000 - i, kTable));
  EXPECT_EQ(PositionsOf(RowOrder(kTable, ids)), Wanted(ids));
}

TEST(RowOrderTest, TakesTheSmallestAndTheLargestId) {
  const std::vector<uint64_t> ids = {std::numeric_limits<uint64_t>::max(), 0, std::numeric_limits<uint64_t>::max()};
  EXPECT_EQ(PositionsOf(RowOrder(kTable, ids)), Wanted(ids));
}

TEST(RowOrderTest, TakesNoIds) { EXPECT_EQ(RowOrder(kTable, {}).size(), 0); }

TEST(RowOrderTest, CountsTheRowsBelowAHash) {
  const RowOrder order(kTable, Numbers(1'000));
  EXPECT_EQ(order.CountBelow(0), 0);
  EXPECT_EQ(order.CountBelow(order[17][0].hash), 17);
  EXPECT_EQ(order.CountBelow(order[17][0].hash + 1), 18);
  EXPECT_EQ(order.CountBelow(std::numeric_limits<uint64_t>::max()), 1'000);
  EXPECT_EQ(RowOrder(kTable, {}).CountBelow(5), 0);
}

}  // namespace
}  // namespace ballast
