// SPDX-License-Identifier: Apache-2.0
#include "server/tables/range/use_counts.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/tables/row_hash.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

std::unique_ptr<UseCounts> Exact(uint64_t max_rows = 0) {
  return UseCounts::Make({.min_uses = 4, .max_rows = max_rows}, 0);
}

std::unique_ptr<UseCounts> Sketch(uint64_t max_rows = 0) {
  return UseCounts::Make({.min_uses = 4, .sketch = true, .max_rows = max_rows}, 0);
}

TEST(UseCountsTest, NothingIsCountedIfTheFirstUseSuffices) {
  EXPECT_EQ(UseCounts::Make({}, 4), nullptr);
  EXPECT_EQ(UseCounts::Make({.probability = 0.5}, 4), nullptr);
}

TEST(ExactUsesTest, EqualsAMap) {
  const auto counts = Exact();
  std::map<uint64_t, uint32_t> want;
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const uint64_t hash = RowHash(random() % 3000, 1);
    const uint32_t uses = 1 + random() % 3;
    ASSERT_EQ(counts->Count(hash, uses, {}), want[hash] += uses);
    if (random() % 5 > 0) continue;
    counts->Forget(hash);
    want.erase(hash);
  }
  EXPECT_EQ(counts->waiting(), want.size());
}

TEST(ExactUsesTest, UsesThatAreTooOldDoNotCount) {
  const auto counts = Exact();
  EXPECT_EQ(counts->Count(7, 2, {.now = 1, .max_age = 5}), 2u);
  EXPECT_EQ(counts->Count(7, 1, {.now = 6, .max_age = 5}), 3u);
  EXPECT_EQ(counts->Count(7, 1, {.now = 12, .max_age = 5}), 1u);
}

TEST(ExactUsesTest, ForgetsTheIdsWithTheFewestUsesAboveFourTimesTheRows) {
  const auto counts = Exact(/*max_rows=*/25);
  for (uint64_t hash = 0; hash < 100; ++hash) counts->Count(hash, hash < 80 ? 2 : 1, {});
  EXPECT_EQ(counts->waiting(), 100u);
  counts->Count(1000, 3, {});
  EXPECT_EQ(counts->waiting(), 90u);
  // Eleven of those with one use are gone.
  std::vector<uint64_t> by_uses;
  counts->CountByUses(by_uses);
  EXPECT_EQ(by_uses, (std::vector<uint64_t>{9, 80, 1}));
}

TEST(SketchedUsesTest, NeverCountsTooFewOfFewIds) {
  const auto counts = Sketch();
  std::map<uint64_t, uint32_t> want;
  std::mt19937_64 random(1);
  uint64_t exact = 0, calls = 0;
  // Few enough uses that nothing is halved.
  for (int i = 0; i < 100; ++i) {
    const uint64_t hash = RowHash(random() % 12, 1);
    const uint32_t got = counts->Count(hash, 1, {});
    ++want[hash];
    ASSERT_GE(got, std::min(want[hash], 15u));
    exact += got == want[hash];
    ++calls;
  }
  EXPECT_GE(exact, calls * 9 / 10);
}

TEST(SketchedUsesTest, AdmitsAboutTheSameIdsAsExactCounts) {
  const auto sketch = Sketch();
  const auto exact = Exact();
  std::mt19937_64 random(1);
  uint64_t too_early = 0, too_late = 0, calls = 0;
  for (int i = 0; i < 200000; ++i) {
    // Many ids that come once, and some that come often.
    const uint64_t hash = RowHash(random() % 2 == 0 ? random() : random() % 2000, 1);
    const bool want = exact->Count(hash, 1, {}) >= 4;
    const bool got = sketch->Count(hash, 1, {}) >= 4;
    too_early += got && !want;
    too_late += want && !got;
    ++calls;
  }
  EXPECT_LT(too_early, calls / 50);
  EXPECT_LT(too_late, calls / 20);
  EXPECT_LT(sketch->memory_bytes(), exact->memory_bytes() / 2);
}

TEST(SketchedUsesTest, TakesNoMoreMemoryThanTheRowsAllow) {
  const auto counts = Sketch(/*max_rows=*/1000);
  std::mt19937_64 random(1);
  for (int i = 0; i < 500000; ++i) counts->Count(random(), 1, {});
  EXPECT_LE(counts->memory_bytes(), 64u << 10);
}

class SavedUsesTest : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<UseCounts> Make() const { return GetParam() ? Sketch() : Exact(); }
};

TEST_P(SavedUsesTest, RestoredCountsGoOnLikeTheSaved) {
  const auto saved = Make();
  std::mt19937_64 random(1);
  for (int i = 0; i < 5000; ++i) saved->Count(RowHash(random() % 1000, 1), 1, {});
  const auto restored = Make();
  ASSERT_TRUE(restored->Restore(saved->Save()).ok());
  for (int i = 0; i < 20000; ++i) {
    const uint64_t hash = RowHash(random() % 2000, 1);
    ASSERT_EQ(restored->Count(hash, 1, {}), saved->Count(hash, 1, {}));
  }
  EXPECT_EQ(restored->Save(), saved->Save());
}

TEST_P(SavedUsesTest, RefusesBytesThatItDidNotSave) {
  for (const size_t bytes : {1, 15, 17, 100}) {
    EXPECT_EQ(Make()->Restore(std::string(bytes, '\x01')).code(), absl::StatusCode::kDataLoss) << bytes;
  }
  if (!GetParam()) {
    EXPECT_EQ(Make()->Restore(std::string(16, '\0')).code(), absl::StatusCode::kDataLoss);
  }
}

INSTANTIATE_TEST_SUITE_P(ExactOrSketch, SavedUsesTest, testing::Bool());

}  // namespace
}  // namespace ballast
