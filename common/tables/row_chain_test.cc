// SPDX-License-Identifier: Apache-2.0
#include "common/tables/row_chain.h"

#include <string>

#include "gtest/gtest.h"

namespace ballast {
namespace {

// The table in docs/protocol/wire_protocol.md: row 1 of table 1 with the weights 1 and -2 in fp32, then the eviction of
// row 2.
TEST(RowChainTest, HasTheProtocolsTestVector) {
  const std::string id1("\1\0\0\0\0\0\0\0", 8), id2("\2\0\0\0\0\0\0\0", 8);
  const std::string weights("\0\0\x80\x3f\0\0\0\xc0", 8);
  EXPECT_EQ(NextRowChain(0, "", "", ""), 0xc77b3abb6f87acd9u);
  EXPECT_EQ(NextRowChain(0, id1, "", weights), 0x5c2d27d605963ed7u);
  EXPECT_EQ(NextRowChain(NextRowChain(0, id1, "", weights), "", id2, ""), 0x2647578ab0f779b8u);
}

TEST(RowChainTest, DependsOnEveryPart) {
  const uint64_t chain = NextRowChain(7, "12345678", "abcdefgh", "payload.");
  EXPECT_NE(chain, NextRowChain(8, "12345678", "abcdefgh", "payload."));
  EXPECT_NE(chain, NextRowChain(7, "12345679", "abcdefgh", "payload."));
  EXPECT_NE(chain, NextRowChain(7, "12345678", "abcdefgi", "payload."));
  EXPECT_NE(chain, NextRowChain(7, "12345678", "abcdefgh", "payload,"));
}

}  // namespace
}  // namespace ballast
