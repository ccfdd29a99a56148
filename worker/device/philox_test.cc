// SPDX-License-Identifier: Apache-2.0
#include "worker/device/philox.h"

#include <gmock/gmock.h>

namespace ballast {
namespace {

using ::testing::ElementsAre;

// The expected words are those that the authors publish with their library Random123.
TEST(PhiloxTest, GivesThePublishedAnswers) {
  EXPECT_THAT(Philox({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8))
      << "ZeroCounterAndKeyGiveThePublishedAnswer";
  EXPECT_THAT(Philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd))
      << "AllOnesGiveThePublishedAnswer";
  EXPECT_THAT(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1))
      << "DigitsOfPiGiveThePublishedAnswer";
}

}  // namespace
}  // namespace ballast
