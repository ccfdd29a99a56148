// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/tables/row_uses.h"

#include <algorithm>
#include <map>
#include <set>

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(RowUsesTest, AreTheSameEachTimeAndOthersForAnotherPush) {
  const RowDraw draw(1, 20000, 2), same(1, 20000, 2), other(2, 20000, 2);
  EXPECT_EQ(draw.Uses({1, 2, 3}), same.Uses({1, 2, 3}));
  EXPECT_NE(draw.Uses({1, 2, 3}), draw.Uses({1, 2, 4}));
  EXPECT_NE(draw.Uses({1, 2, 3}), draw.Uses({1, 3, 3}));
  EXPECT_NE(draw.Uses({1, 2, 3}), draw.Uses({2, 2, 3}));
  EXPECT_NE(draw.Uses({1, 2, 3}), other.Uses({1, 2, 3}));
}

TEST(RowUsesTest, RepeatFrequentRowsAndReachRareOnes) {
  const RowDraw draw(1, 20000, 2);
  std::map<uint64_t, int> uses;
  int all = 0;
  for (uint64_t number = 0; number < 64; ++number) {
    const RowUses drawn = draw.Uses({0, 0, number});
    for (const uint64_t id : drawn[0]) {
      ++uses[id];
      ++all;
    }
  }
  const auto most = std::max_element(uses.begin(), uses.end(), [](auto& a, auto& b) { return a.second < b.second; });
  EXPECT_EQ(most->first, RowDraw::IdOf(0));
  EXPECT_GT(most->second, all / 20);
  EXPECT_GT(uses.size(), 5000u);
}

TEST(RowUsesTest, OtherRowsBecomeFrequent) {
  const RowDraw draw(1, 20000, 2);
  const std::vector<uint64_t> later = draw.Uses({0, 0, 64})[0];
  EXPECT_GT(std::count(later.begin(), later.end(), RowDraw::IdOf(977)), 64);
}

TEST(RowUsesTest, EachServerHasAMarkOfItsOwnForEachPush) {
  const RowDraw draw(1, 20000, 2);
  std::set<uint64_t> marks;
  for (uint64_t number = 0; number < 100; ++number) {
    for (uint32_t server = 0; server < 2; ++server) {
      const uint64_t mark = draw.MarkOf({3, 1, number}, server);
      EXPECT_TRUE(marks.insert(mark).second);
      EXPECT_EQ(draw.OnServer({{mark}, {}}, server)[0].size(), 1u);
      EXPECT_EQ(draw.OnServer({{mark}, {}}, 1 - server)[0].size(), 0u);
    }
  }
}

TEST(RowUsesTest, TheServersTogetherHaveAllUses) {
  const RowDraw draw(1, 20000, 2);
  RowUses uses = draw.Uses({0, 0, 1});
  const RowUses first = draw.OnServer(uses, 0), second = draw.OnServer(uses, 1);
  for (size_t table = 0; table < uses.size(); ++table) {
    std::vector<uint64_t> both = first[table];
    both.insert(both.end(), second[table].begin(), second[table].end());
    std::sort(both.begin(), both.end());
    std::sort(uses[table].begin(), uses[table].end());
    EXPECT_EQ(both, uses[table]);
    EXPECT_FALSE(first[table].empty());
    EXPECT_FALSE(second[table].empty());
  }
}

}  // namespace
}  // namespace ballast
