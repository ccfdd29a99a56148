// SPDX-License-Identifier: Apache-2.0
#include "server/tables/table_capture.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "common/tables/row_hash.h"
#include "gtest/gtest.h"
#include "server/tables/range/table_fixture.h"
#include "server/tables/sparse_table.h"

namespace ballast {
namespace {

constexpr int kDim = 4;

// The images of a table's rows, by hash.
using Images = std::map<uint64_t, std::vector<uint32_t>>;

// A whole table of 16 ranges with rows of 4 weights and 1 slot.
class TableCaptureTest : public testing::Test {
 protected:
  void Push(const std::vector<uint64_t>& hashes) {
    const std::vector<float> gradients(hashes.size() * kDim, 1.0f);
    table_.Push({hashes, gradients.data(), {}, 1, 0.5f, false, {++step_}, &optimizer_, &initializer_});
  }

  // Reads the rest of a capture, and expects its ranges to follow each other from `first` to `end`.
  Images Read(TableCapture& capture, uint32_t first = 0, uint32_t end = 16) {
    Images images;
    const size_t words = capture.row_bytes() / sizeof(uint32_t);
    uint64_t last = 0;
    while (const std::optional<RowsPiece> piece = capture.Next()) {
      EXPECT_EQ(piece->range, first);
      first += piece->ranges;
      EXPECT_EQ(piece->rows.words.size(), piece->rows.hashes.size() * words);
      for (size_t i = 0; i < piece->rows.hashes.size(); ++i) {
        const uint64_t hash = piece->rows.hashes[i];
        EXPECT_TRUE(images.empty() || last < hash);
        last = hash;
        const auto image = piece->rows.words.begin() + i * words;
        images[hash] = {image, image + words};
      }
      ++pieces_;
    }
    EXPECT_EQ(first, end);
    EXPECT_EQ(capture.rows_read(), images.size());
    return images;
  }

  Images Now() { return Read(*table_.BeginCapture()); }

  const CountingSgd optimizer_{};
  const LowBitsInitializer initializer_{};
  PageArena arena_{uint64_t{256} << 20};
  SparseTable table_{&arena_, {kDim, 1, 4, 0, 16}};
  uint32_t step_ = 0;
  int pieces_ = 0;
};

TEST_F(TableCaptureTest, OfAnEmptyTableCoversItsRangesWithoutRows) {
  EXPECT_EQ(Now(), Images());
  EXPECT_EQ(pieces_, 1);
}

TEST_F(TableCaptureTest, HasWeightsSlotsAndState) {
  Push({5});
  Push({5, 0xf000000000000003});
  const Images images = Now();
  ASSERT_EQ(images.size(), 2u);
  std::vector<uint32_t> want(8);
  const float floats[] = {4, 4, 4, 4, 2};
  const uint32_t state[] = {2, 2, 0};
  std::memcpy(want.data(), floats, sizeof(floats));
  std::memcpy(want.data() + 5, state, sizeof(state));
  EXPECT_EQ(images.at(5), want);
}

TEST_F(TableCaptureTest, KeepsRowsAsTheyWereWhileTheyChangeBeginAndEnd) {
  Push({1, 2, 3, 0xf000000000000003});
  const Images before = Now();
  const auto capture = table_.BeginCapture();
  Push({1, 4, 0xf000000000000001});
  Push({1, 2});
  EXPECT_TRUE(table_.Erase(3));
  EXPECT_TRUE(table_.Erase(4));
  // Takes a place that a row of the capture had.
  Push({6, 7, 8});
  EXPECT_EQ(Read(*capture), before);
  const Images after = Now();
  EXPECT_EQ(after.size(), 7u);
  EXPECT_FALSE(after.contains(3));
  EXPECT_NE(after.at(1), before.at(1));
}

TEST_F(TableCaptureTest, SeveralAtOnceHaveTheirOwnMoments) {
  Push({1, 2});
  const Images first = Now();
  const auto one = table_.BeginCapture();
  Push({2, 3});
  const Images second = Now();
  const auto two = table_.BeginCapture();
  Push({1, 2, 3, 4});
  EXPECT_EQ(Read(*one), first);
  Push({1});
  EXPECT_EQ(Read(*two), second);
}

TEST_F(TableCaptureTest, ThatIsDroppedLeavesTheTableAlone) {
  Push({1, 2, 0xf000000000000003});
  {
    const auto capture = table_.BeginCapture();
    Push({1});
  }
  Push({1, 2});
  EXPECT_EQ(Now().size(), 3u);
}

TEST_F(TableCaptureTest, OfSomeRangesHasOnlyTheirRows) {
  Push({1, 0x3000000000000001, 0x4000000000000001, 0xf000000000000003});
  const auto capture = table_.BeginCapture(3, 2);
  const Images images = Read(*capture, 3, 5);
  EXPECT_EQ(images.size(), 2u);
  EXPECT_TRUE(images.contains(0x3000000000000001));
}

TEST_F(TableCaptureTest, SplitsALargeRangeAndKeepsTheOrder) {
  // 100,000 rows of 32 bytes in one range, and a few in the next ones.
  std::vector<uint64_t> hashes;
  for (uint64_t i = 0; i < 100000; ++i) hashes.push_back(i << 43);
  hashes.push_back(0x5000000000000000);
  Push(hashes);
  EXPECT_EQ(Now().size(), 100001u);
  EXPECT_EQ(pieces_, 4);
}

TEST_F(TableCaptureTest, RestoredInAnotherTableGivesTheSameImages) {
  Push(HashesOfRows(5000));
  Push(HashesOfRows(777));
  SparseTable other(&arena_, table_.options());
  const auto capture = table_.BeginCapture();
  while (const std::optional<RowsPiece> piece = capture->Next()) {
    const auto* images = reinterpret_cast<const char*>(piece->rows.words.data());
    EXPECT_EQ(other.Restore(piece->rows.hashes, images), piece->rows.hashes.size());
    EXPECT_EQ(other.Restore(piece->rows.hashes, images), 0u);
  }
  EXPECT_EQ(Read(*other.BeginCapture()), Now());
}

TEST_F(TableCaptureTest, RestoredOverOtherRowsReplacesThemIfAsked) {
  Push({1, 2, 0xf000000000000003});
  SparseTable other(&arena_, table_.options());
  const auto first = table_.BeginCapture();
  const RowImages before = first->Next()->rows;
  other.Restore(before.hashes, reinterpret_cast<const char*>(before.words.data()));
  Push({1, 3});
  const auto second = table_.BeginCapture();
  const RowImages after = second->Next()->rows;
  EXPECT_EQ(other.Restore(after.hashes, reinterpret_cast<const char*>(after.words.data()), /*replace=*/true), 4u);
  EXPECT_EQ(Read(*other.BeginCapture()), Now());
}

// Two copies that see the changes alone, at different times, beside a capture of everything.
TEST_F(TableCaptureTest, OfChangesAloneKeepsCopiesEqual) {
  std::mt19937 random(2);
  const std::vector<uint64_t> all = HashesOfRows(3000);
  const auto change = [&] {
    std::vector<uint64_t> some;
    for (uint64_t hash : all) {
      if (random() % 40 == 0) some.push_back(hash);
    }
    Push(some);
    for (int i = 0; i < 30; ++i) table_.Erase(all[random() % all.size()]);
  };
  struct Copy {
    std::unique_ptr<TableChanges> changes;
    Images rows;
  };
  Copy copies[2] = {{table_.Follow(), {}}, {table_.Follow(), {}}};
  for (int round = 0; round < 40; ++round) {
    change();
    const Images want = Now();
    Copy& copy = copies[round % 3 == 0 ? 0 : 1];
    const auto capture = table_.BeginCapture(*copy.changes);
    const auto whole = table_.BeginCapture();
    change();
    EXPECT_EQ(Read(*whole), want);
    uint32_t next = 0;
    while (const std::optional<RowsPiece> piece = capture->Next()) {
      EXPECT_EQ(piece->range, next);
      next += piece->ranges;
      EXPECT_TRUE(std::is_sorted(piece->rows.removed.begin(), piece->rows.removed.end()));
      for (uint64_t hash : piece->rows.removed) copy.rows.erase(hash);
      const size_t words = capture->row_bytes() / sizeof(uint32_t);
      for (size_t i = 0; i < piece->rows.hashes.size(); ++i) {
        const auto image = piece->rows.words.begin() + i * words;
        copy.rows[piece->rows.hashes[i]] = {image, image + words};
      }
    }
    EXPECT_EQ(next, 16u);
    ASSERT_EQ(copy.rows, want) << "round " << round;
  }
}

TEST_F(TableCaptureTest, OfChangesAloneHasAtMostAPieceOfRemovedRowsAtATime) {
  std::vector<uint64_t> hashes;
  for (uint64_t i = 0; i < 400000; ++i) hashes.push_back(i << 44);
  Push(hashes);
  const auto changes = table_.Follow();
  for (uint64_t hash : hashes) table_.Erase(hash);
  EXPECT_EQ(changes->Count(), 400000u);
  const auto capture = table_.BeginCapture(*changes);
  EXPECT_EQ(changes->Count(), 0u);
  size_t removed = 0;
  int pieces = 0;
  for (; const std::optional<RowsPiece> piece = capture->Next(); ++pieces) removed += piece->rows.removed.size();
  EXPECT_EQ(removed, 400000u);
  EXPECT_GE(pieces, 2);
}

// Reads exactly what changed of a million rows, and prints the time for which pushes wait.
TEST(LargeTableCaptureTest, OfChangesAloneReadsTheRowsThatChanged) {
  const CountingSgd optimizer;
  const LowBitsInitializer initializer;
  PageArena arena{uint64_t{1} << 30};
  constexpr uint64_t kRows = 1000000;
  SparseTable table(&arena, {16, 16, 12, 0, 4096});
  const std::vector<uint64_t> hashes = HashesOfRows(kRows);
  const std::vector<float> gradients(kRows * 16, 1.0f);
  const auto push = [&](const std::vector<uint64_t>& some) {
    table.Push({some, gradients.data(), {}, 1, 0.5f, false, {1}, &optimizer, &initializer});
  };
  push(hashes);
  const auto changes = table.Follow();
  for (uint64_t share : {0, 1, 10, 100}) {
    std::vector<uint64_t> some;
    for (uint64_t i = 0; i < kRows; ++i) {
      if (i % 100 < share) some.push_back(hashes[i]);
    }
    push(some);
    const auto begin = std::chrono::steady_clock::now();
    const auto capture = table.BeginCapture(*changes);
    const auto begun = std::chrono::steady_clock::now();
    while (capture->Next().has_value()) continue;
    const auto end = std::chrono::steady_clock::now();
    EXPECT_EQ(capture->rows_read(), some.size());
    using Milliseconds = std::chrono::duration<double, std::milli>;
    std::cout << share << "% of 1000000 rows of " << capture->row_bytes() << " bytes: begun in "
              << Milliseconds(begun - begin).count() << " ms, read in " << Milliseconds(end - begun).count() << " ms\n";
  }
}

// Compares captures that are read a little at a time, between random changes, with copies of the whole table.
TEST_F(TableCaptureTest, EqualsACopyUnderRandomChanges) {
  std::mt19937 random(1);
  const std::vector<uint64_t> all = HashesOfRows(3000);
  for (int round = 0; round < 20; ++round) {
    const Images want = Now();
    const auto capture = table_.BeginCapture();
    const auto change = [&] {
      std::vector<uint64_t> some;
      for (uint64_t hash : all) {
        if (random() % 40 == 0) some.push_back(hash);
      }
      Push(some);
      for (int i = 0; i < 30; ++i) table_.Erase(all[random() % all.size()]);
    };
    change();
    change();
    EXPECT_EQ(Read(*capture), want);
    change();
  }
}

}  // namespace
}  // namespace ballast
