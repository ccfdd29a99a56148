// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/grouped_rows.h"

#include <gmock/gmock.h>

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GroupedRowsTest, KeepsTheOrderOfTheEntriesOfARow) {
  const GroupedRows grouped({7, 2, 7, 9, 2});
  EXPECT_THAT(grouped.target, ElementsAre(2, 7, 9));
  EXPECT_THAT(grouped.begin, ElementsAre(0, 2, 4, 5));
  EXPECT_THAT(grouped.source, ElementsAre(1, 4, 0, 2, 3));
}

TEST(GroupedPlacesTest, ListsTheBagsOfEachRowInTheOrderOfThePlaces) {
  // Bags (), (3, 1), (3, 3), (), (0).
  const std::vector<uint32_t> ends = {0, 2, 4, 4, 5}, places = {3, 1, 3, 3, 0};
  const GroupedPlaces grouped({ends, places, 1}, 5);
  EXPECT_THAT(grouped.begin, ElementsAre(0, 1, 2, 2, 5, 5));
  EXPECT_THAT(grouped.bag, ElementsAre(4, 1, 1, 2, 2));
}

TEST(GroupedPlacesTest, TakesNoBagsAndNoRows) {
  EXPECT_THAT(GroupedPlaces({}, 2).begin, ElementsAre(0, 0, 0));
  EXPECT_THAT(GroupedPlaces({}, 0).begin, ElementsAre(0));
  EXPECT_THAT(GroupedPlaces({}, 0).bag, IsEmpty());
}

}  // namespace
}  // namespace ballast
