// SPDX-License-Identifier: Apache-2.0
#include "server/tables/range/row_index.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "common/simd/instruction_set.h"
#include "common/tables/row_hash.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kLastHash = 0xffffffffffffffff;
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
constexpr int kOperations = 1'000'000;
#else
constexpr int kOperations = 10'000'000;
#endif

// An index of the hashes whose top 4 bits are 0, next to a std::map that holds the same.
class RowIndexTest : public testing::Test {
 protected:
  void Insert(uint64_t hash, uint32_t place) {
    ASSERT_TRUE(index_.Insert(hash, place));
    map_[hash] = place;
  }

  void ExpectPlace(uint64_t hash) {
    const auto found = map_.find(hash);
    ASSERT_EQ(index_.Find(hash), found == map_.end() ? RowIndex::kNoPlace : found->second);
  }

  // Compares groups of 16 hashes, found with each instruction set.
  void ExpectPlaces(const std::vector<uint64_t>& hashes) {
    const uint64_t missing =
        std::count_if(hashes.begin(), hashes.end(), [&](uint64_t hash) { return map_.count(hash) == 0; });
    for (InstructionSet set : AvailableInstructionSets()) {
      ScopedInstructionSet chosen(set);
      ASSERT_EQ(index_.CountMissing(hashes), missing);
      for (size_t begin = 0; begin < hashes.size(); begin += 16) {
        const auto group = absl::MakeConstSpan(hashes).subspan(begin, 16);
        const RowIndex::Line* homes[16];
        uint32_t places[16];
        index_.Prefetch(group, homes);
        index_.Find(group, homes, places);
        for (size_t i = 0; i < group.size(); ++i) {
          const auto found = map_.find(group[i]);
          ASSERT_EQ(places[i], found == map_.end() ? RowIndex::kNoPlace : found->second);
        }
      }
    }
  }

  // Inserts, erases and finds random ones of the hashes. Phases in which it mostly inserts follow phases in which it
  // mostly erases.
  void RunOperations(const std::vector<uint64_t>& hashes, int operations) {
    std::mt19937_64 random(7);
    for (int i = 0; i < operations; ++i) {
      const uint64_t draw = random();
      const uint64_t hash = hashes[(draw >> 16) % hashes.size()];
      const bool inserts = draw % 8 < (i / (operations / 10) % 2 == 0 ? 6 : 1);
      if (draw % 16 >= 8) {
        ASSERT_NO_FATAL_FAILURE(ExpectPlace(hash));
      } else if (inserts && map_.count(hash) == 0) {
        ASSERT_NO_FATAL_FAILURE(Insert(hash, i));
      } else if (!inserts) {
        const auto found = map_.find(hash);
        ASSERT_EQ(index_.Erase(hash), found == map_.end() ? RowIndex::kNoPlace : found->second);
        if (found != map_.end()) map_.erase(found);
      }
    }
    ASSERT_EQ(index_.size(), map_.size());
    ExpectPlaces(hashes);
  }

  PageArena arena_{64 * kMiB};
  RowIndex index_{&arena_, 4};
  std::map<uint64_t, uint32_t> map_;
};

TEST_F(RowIndexTest, AnEmptyIndexFindsNothing) {
  EXPECT_EQ(index_.Find(0), RowIndex::kNoPlace);
  EXPECT_EQ(index_.Erase(0), RowIndex::kNoPlace);
  ExpectPlaces({0, 1, 2});
  EXPECT_EQ(index_.memory_bytes(), 0u);
}

TEST_F(RowIndexTest, EqualsAMapAfterTenMillionRandomOperations) {
  std::vector<uint64_t> hashes;
  for (uint64_t id = 0; id < 20'000; ++id) hashes.push_back(RowHash(id, 1) >> 4);
  RunOperations(hashes, kOperations);
}

TEST_F(RowIndexTest, EqualsAMapIfAllHashesShareAHomeLine) {
  std::vector<uint64_t> hashes;
  for (uint64_t i = 0; i < 300; ++i) hashes.push_back(0x0123456789abcdef + i);
  RunOperations(hashes, kOperations / 50);
}

TEST_F(RowIndexTest, EqualsAMapIfTheLastLinesOverflowIntoTheFirst) {
  std::vector<uint64_t> hashes;
  for (uint64_t i = 0; i < 200; ++i) hashes.push_back((kLastHash >> 4) - i);
  for (uint64_t i = 0; i < 50; ++i) hashes.push_back(i);
  RunOperations(hashes, kOperations / 50);
}

TEST_F(RowIndexTest, OneLineHoldsFourHashes) {
  for (uint64_t hash = 0; hash < 4; ++hash) Insert(hash, hash);
  EXPECT_EQ(index_.lines(), 1u);
  ExpectPlaces({0, 1, 2, 3, 4});
  Insert(4, 4);
  EXPECT_EQ(index_.lines(), 2u);
  ExpectPlaces({0, 1, 2, 3, 4, 5});
}

TEST_F(RowIndexTest, NoHashIsReserved) {
  RowIndex whole(&arena_, 0);
  ASSERT_TRUE(whole.Insert(0, 1));
  EXPECT_EQ(whole.Find(kLastHash), RowIndex::kNoPlace);
  ASSERT_TRUE(whole.Insert(kLastHash, 2));
  EXPECT_EQ(whole.Find(0), 1u);
  EXPECT_EQ(whole.Find(kLastHash), 2u);
  EXPECT_EQ(whole.Erase(0), 1u);
  EXPECT_EQ(whole.Find(0), RowIndex::kNoPlace);
}

TEST_F(RowIndexTest, GrowsByAQuarterAndStaysBelowFourFifths) {
  uint64_t before = 0;
  for (uint64_t id = 0; id < 50'000; ++id) {
    ASSERT_TRUE(index_.Insert(RowHash(id, 1) >> 4, id));
    ASSERT_LE(index_.size(), index_.lines() * 4);
    if (index_.lines() != before && before >= 4) {
      ASSERT_EQ(index_.lines(), before + before / 4);
    }
    before = index_.lines();
  }
  EXPECT_LE(index_.memory_bytes(), 50'000u * 25);
}

TEST_F(RowIndexTest, AscendingHashesStayNearTheirHomesAfterReserve) {
  ASSERT_TRUE(index_.Reserve(40'000));
  EXPECT_EQ(index_.lines(), 10'000u);
  std::vector<uint64_t> hashes;
  for (uint64_t id = 0; id < 40'000; ++id) hashes.push_back(RowHash(id, 1) >> 4);
  std::sort(hashes.begin(), hashes.end());
  for (uint64_t hash : hashes) Insert(hash, 1);
  EXPECT_EQ(index_.lines(), 10'000u);
  ExpectPlaces(hashes);
  uint64_t away = 0;
  for (uint64_t hash : hashes) {
    const RowIndex::Line* home;
    index_.Prefetch({&hash, 1}, &home);
    if (std::find(home->hashes, home->hashes + 5, hash) == home->hashes + 5) ++away;
  }
  EXPECT_LE(away, 12'000u);
}

TEST_F(RowIndexTest, SortedIsAscendingByHash) {
  for (uint64_t hash : {30, 10, 20, 15}) Insert(hash, hash + 1);
  std::vector<uint64_t> hashes;
  for (const RowIndex::Entry& entry : index_.Sorted()) {
    hashes.push_back(entry.hash);
    EXPECT_EQ(entry.place, entry.hash + 1);
  }
  EXPECT_EQ(hashes, (std::vector<uint64_t>{10, 15, 20, 30}));
}

TEST_F(RowIndexTest, KeepsItsHashesIfThereIsNoMemoryToGrow) {
  PageArena small(2 * kMiB);
  RowIndex index(&small, 4);
  uint32_t inserted = 0;
  while (index.Insert(RowHash(inserted, 1) >> 4, inserted)) ++inserted;
  EXPECT_GE(inserted, 80'000u);
  EXPECT_EQ(index.size(), inserted);
  for (uint32_t id = 0; id < inserted; ++id) ASSERT_EQ(index.Find(RowHash(id, 1) >> 4), id);
  EXPECT_EQ(index.Find(RowHash(inserted, 1) >> 4), RowIndex::kNoPlace);
}

TEST(RowIndexStaggerTest, SpreadsTheGrowthOfIndexesOfEqualSize) {
  PageArena arena(uint64_t{64} << 20);
  std::set<uint64_t> capacities;
  for (const float stagger : {0.0f, 0.25f, 0.5f, 0.75f}) {
    RowIndex index(&arena, 4, stagger);
    for (uint64_t hash = 1; hash <= 2000; ++hash) ASSERT_TRUE(index.Insert(hash << 40, hash));
    EXPECT_GE(index.capacity(), 2000u);
    EXPECT_LE(index.capacity(), 2600u);
    capacities.insert(index.capacity());
  }
  EXPECT_EQ(capacities.size(), 4u);
}

}  // namespace
}  // namespace ballast
