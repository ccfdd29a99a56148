// SPDX-License-Identifier: Apache-2.0
#include "worker/data/row_indexer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RowIndexerTest, EachTableHasTheDistinctIdsOfItsFields) {
  // Two examples of three fields; the second example's first bag is empty.
  const IdBags bags = {.ids = {7, 9, 7, 7, 8, 9}, .ends = {2, 3, 4, 4, 5, 6}};
  RowIndexer indexer({{0, 2}, {1}}, 3);
  std::vector<BatchRows> tables;
  indexer.Index(bags, tables);
  ASSERT_EQ(tables.size(), 2);
  EXPECT_THAT(tables[0].ids, ElementsAre(7, 9));
  EXPECT_THAT(tables[0].uses, ElementsAre(2, 2));
  EXPECT_THAT(tables[0].ends, ElementsAre(2, 3, 3, 4));
  EXPECT_THAT(tables[0].places, ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(tables[1].ids, ElementsAre(7, 8));
  EXPECT_THAT(tables[1].ends, ElementsAre(1, 2));
  EXPECT_THAT(tables[1].places, ElementsAre(0, 1));
}

TEST(RowIndexerTest, FieldsMayBeInAnotherOrderThanTheDatas) {
  RowIndexer indexer({{1, 0}}, 2);
  std::vector<BatchRows> tables;
  indexer.Index({.ids = {5, 6}, .ends = {1, 2}}, tables);
  EXPECT_THAT(tables[0].ids, ElementsAre(6, 5));
}

TEST(RowIndexerTest, UsesEndAtTheirLimit) {
  IdBags bags = {.ids = std::vector<uint64_t>(70'000, 1), .ends = {70'000}};
  RowIndexer indexer({{0}}, 1);
  std::vector<BatchRows> tables;
  indexer.Index(bags, tables);
  EXPECT_THAT(tables[0].uses, ElementsAre(65'535));
}

TEST(RowIndexerTest, BatchesDoNotAffectEachOther) {
  RowIndexer indexer({{0}}, 1);
  std::vector<BatchRows> tables;
  indexer.Index({.ids = {1, 2, 3}, .ends = {1, 2, 3}}, tables);
  indexer.Index({.ids = {3}, .ends = {1}}, tables);
  EXPECT_THAT(tables[0].ids, ElementsAre(3));
  indexer.Index({}, tables);
  EXPECT_THAT(tables[0].ids, IsEmpty());
  EXPECT_THAT(tables[0].ends, IsEmpty());
}

TEST(RowIndexerTest, EveryUseHasItsId) {
  std::mt19937_64 random(3);
  RowIndexer indexer({{0, 1}}, 2);
  for (int batch = 0; batch < 20; ++batch) {
    IdBags bags;
    std::map<uint64_t, uint32_t> uses;
    for (int bag = 0; bag < 200; ++bag) {
      for (uint64_t i = random() % 4; i > 0; --i) {
        // 0 and the largest id are ids like all others.
        const uint64_t id = random() % 50 == 0 ? ~uint64_t{0} : random() % 100;
        bags.ids.push_back(id);
        ++uses[id];
      }
      bags.ends.push_back(bags.ids.size());
    }
    std::vector<BatchRows> tables;
    indexer.Index(bags, tables);
    EXPECT_EQ(tables[0].ends, bags.ends);
    ASSERT_EQ(tables[0].places.size(), bags.ids.size());
    for (size_t i = 0; i < bags.ids.size(); ++i) EXPECT_EQ(tables[0].ids[tables[0].places[i]], bags.ids[i]);
    ASSERT_EQ(tables[0].ids.size(), uses.size());
    for (size_t i = 0; i < uses.size(); ++i) EXPECT_EQ(tables[0].uses[i], uses[tables[0].ids[i]]);
  }
}

}  // namespace
}  // namespace ballast
