// SPDX-License-Identifier: Apache-2.0
#include "server/tables/message_rows.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "common/tables/row_hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kTable = 7;

std::string Bytes(const std::vector<uint64_t>& ids) {
  return std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(uint64_t));
}

std::vector<uint64_t> InOrder(std::vector<uint64_t> ids) {
  std::sort(ids.begin(), ids.end(), [](uint64_t a, uint64_t b) { return RowHash(a, kTable) < RowHash(b, kTable); });
  return ids;
}

std::string Error(const std::vector<uint64_t>& ids) {
  return std::string(MessageRows::Of(Bytes(ids), kTable, /*unordered=*/false).status().message());
}

TEST(MessageRowsTest, KeepsIdsThatAreInOrder) {
  const std::vector<uint64_t> ids = InOrder({0, 1, 2, ~uint64_t{0}});
  const MessageRows order = MessageRows::Of(Bytes(ids), kTable, /*unordered=*/false).value();
  EXPECT_TRUE(order.in_order());
  EXPECT_EQ(order.ids(), 4);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(order.hashes()[i], RowHash(ids[i], kTable));
}

TEST(MessageRowsTest, FindsEachIdOfAnUnorderedMessageAmongItsRows) {
  std::vector<uint64_t> ids;
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) ids.push_back(random() % 5000);
  const MessageRows order = MessageRows::Of(Bytes(ids), kTable, /*unordered=*/true).value();
  ASSERT_EQ(order.ids(), ids.size());
  EXPECT_TRUE(std::is_sorted(order.hashes().begin(), order.hashes().end(), std::less_equal<>()));
  for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(order.hashes()[order.row_of()[i]], RowHash(ids[i], kTable)) << i;
}

TEST(MessageRowsTest, AnIdThatRepeatsIsOneRow) {
  const MessageRows order = MessageRows::Of(Bytes({9, 9, 9}), kTable, /*unordered=*/true).value();
  EXPECT_THAT(order.hashes(), ElementsAre(RowHash(9, kTable)));
  EXPECT_THAT(order.row_of(), ElementsAre(0, 0, 0));
}

TEST(MessageRowsTest, NoIdsAreInOrder) {
  const MessageRows order = MessageRows::Of("", kTable, /*unordered=*/false).value();
  EXPECT_TRUE(order.in_order());
  EXPECT_EQ(order.ids(), 0);
}

TEST(MessageRowsTest, NamesTheIdThatIsOutOfOrder) {
  const std::vector<uint64_t> ids = InOrder({5, 6});
  EXPECT_THAT(Error({ids[1], ids[0]}),
              HasSubstr(absl::StrCat("ids[1]: got ", ids[0], " after ", ids[1],
                                     ", want ids in ascending order of their hash, or unordered")));
  EXPECT_THAT(Error({5, 5}), HasSubstr("ids[1]: got 5 again, want each id once, or unordered"));
}

TEST(MessageRowsTest, RefusesHalfAnId) {
  const auto order = MessageRows::Of("1234567", kTable, /*unordered=*/true);
  EXPECT_EQ(order.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(order.status().message()), HasSubstr("ids: got 7 bytes, want a multiple of 8"));
}

}  // namespace
}  // namespace ballast
