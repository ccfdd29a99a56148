// SPDX-License-Identifier: Apache-2.0
#include "common/tables/row_hash.h"

#include <array>
#include <random>

#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr uint64_t kLastId = 0xffffffffffffffff;

// The same values are in docs/protocol/wire_protocol.md, for clients in other languages.
TEST(RowHashTest, HasTheDocumentedValues) {
  EXPECT_EQ(RowHash(0, 0), 0u);
  EXPECT_EQ(RowHash(0, 1), 0xe220a8397b1dcdafu);
  EXPECT_EQ(RowHash(1, 1), 0xe4d971771b652c20u);
  EXPECT_EQ(RowHash(kLastId, 7), 0x8bde40ab87623c48u);
}

TEST(RowHashTest, TheIdFollowsFromTheHash) {
  std::mt19937_64 random(1);
  for (uint32_t table : {0u, 1u, 7u, 0xffffffffu}) {
    for (uint64_t id : {uint64_t{0}, uint64_t{1}, kLastId}) EXPECT_EQ(RowIdOf(RowHash(id, table), table), id);
    for (int i = 0; i < 10'000; ++i) {
      const uint64_t id = random();
      ASSERT_EQ(RowIdOf(RowHash(id, table), table), id);
    }
  }
}

TEST(RowHashTest, TheTopBitsSelectTheRange) {
  EXPECT_EQ(RangeOf(0, 12), 0u);
  EXPECT_EQ(RangeOf(kLastId, 12), 4095u);
  EXPECT_EQ(RangeOf(0x0123456789abcdef, 12), 0x012u);
  EXPECT_EQ(RangeOf(0x8000000000000000, 1), 1u);
}

TEST(RowHashTest, ConsecutiveIdsSpreadEvenlyOverTheRanges) {
  std::array<int, 64> rows = {};
  for (uint64_t id = 0; id < 64'000; ++id) ++rows[RangeOf(RowHash(id, 3), 6)];
  for (int count : rows) EXPECT_NEAR(count, 1000, 150);
}

}  // namespace
}  // namespace ballast
