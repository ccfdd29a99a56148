// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/row_ids.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

// Values of libxxhash 0.8.1.
TEST(RowIdsTest, AreHashesOfTextsSeededWithTheField) {
  EXPECT_EQ(CategoryRowId("", 0), 0x2d06800538d394c2u);
  EXPECT_EQ(CategoryRowId("a", 0), 0xe6c632b61e964e1fu);
  EXPECT_EQ(CategoryRowId("a", 2), 0xaa71cee2aadfd727u);
  EXPECT_EQ(CategoryRowId("a text of more than sixteen bytes", 2), 0xb1b66c3963cbb6c7u);
}

TEST(RowIdsTest, AreHashesOfEightLittleEndianBytesOfNumbers) {
  EXPECT_EQ(CategoryRowId(uint64_t{0}, 0), 0xc77b3abb6f87acd9u);
  EXPECT_EQ(CategoryRowId(uint64_t{1}, 0), 0x2fbc593564db792eu);
  EXPECT_EQ(CategoryRowId(uint64_t{1}, 25), 0x360dcbccf93dc524u);
  EXPECT_EQ(CategoryRowId(uint64_t{0x0123456789abcdef}, 25), 0xe251145bc6a85d97u);
  EXPECT_EQ(CategoryRowId(uint64_t{1}, 25), CategoryRowId(absl::string_view("\x01\0\0\0\0\0\0\0", 8), 25));
}

}  // namespace
}  // namespace ballast
