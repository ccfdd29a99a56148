// SPDX-License-Identifier: Apache-2.0
#include "server/memory/memory_keeper.h"

#include <cstring>
#include <memory>
#include <vector>

#include "common/program/this_process.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr uint64_t kMuch = UnusedMemory::kSpare + 1;

// Number of readings until memory should be returned; 0 if never.
size_t ReadingsUntilReturn(UnusedMemory& unused, uint64_t bytes) {
  for (size_t readings = 1; readings <= 100; ++readings) {
    if (unused.Add(bytes)) return readings;
  }
  return 0;
}

TEST(UnusedMemoryTest, GoesBackOnceItHasBeenWithoutUseForAWhile) {
  UnusedMemory unused;
  EXPECT_EQ(ReadingsUntilReturn(unused, kMuch), UnusedMemory::kReadings);
}

TEST(UnusedMemoryTest, StaysWhileMessagesUseItNowAndThen) {
  UnusedMemory unused;
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(unused.Add(10 * kMuch));
    EXPECT_FALSE(unused.Add(10 * kMuch));
    EXPECT_FALSE(unused.Add(0));
  }
}

// Messages of a job that pushes once a second come and go between two readings.
TEST(UnusedMemoryTest, StaysWhileMessagesHaveFreedIt) {
  UnusedMemory unused;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(unused.Add(10 * kMuch, i % 3 == 0 ? 11 * kMuch : 0));
  // Small messages do not keep the memory of large ones.
  size_t readings = 1;
  while (readings < 100 && !unused.Add(10 * kMuch, kMuch)) ++readings;
  EXPECT_EQ(readings, UnusedMemory::kReadings);
}

TEST(UnusedMemoryTest, ALittleGoesBackOnceNothingComesAndGoes) {
  constexpr uint64_t kLittle = UnusedMemory::kSettled + 1;
  UnusedMemory unused;
  EXPECT_EQ(ReadingsUntilReturn(unused, kLittle), UnusedMemory::kReadings);
  unused.GivenBack(0);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(unused.Add(i % 2 == 0 ? kLittle : 3 * kLittle));
}

TEST(UnusedMemoryTest, WhatCannotGoBackIsNotTriedAgain) {
  UnusedMemory unused;
  ASSERT_GT(ReadingsUntilReturn(unused, 10 * kMuch), 0);
  unused.GivenBack(2 * kMuch);
  EXPECT_EQ(ReadingsUntilReturn(unused, 2 * kMuch), 0);
  EXPECT_GT(ReadingsUntilReturn(unused, 3 * kMuch), 0);
}

TEST(ThisProcessMemoryTest, FreedMemoryIsUnusedUntilItGoesBack) {
  KeepFreedMemory();
  constexpr size_t kPieces = 1024, kBytes = 64 << 10;
  {
    std::vector<std::unique_ptr<char[]>> pieces;
    for (size_t i = 0; i < kPieces; ++i) {
      pieces.push_back(std::make_unique<char[]>(kBytes));
      std::memset(pieces.back().get(), 1, kBytes);
    }
  }
  const uint64_t freed = UnusedResidentBytes();
  EXPECT_GT(freed, kPieces * kBytes / 2);
  ReturnFreedMemory();
  EXPECT_LT(UnusedResidentBytes(), freed - kPieces * kBytes / 2);
}

}  // namespace
}  // namespace ballast
