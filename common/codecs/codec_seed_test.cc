// SPDX-License-Identifier: Apache-2.0
#include "common/codecs/codec_seed.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(CodecSeedTest, DependsOnEachNumberAndTheirOrder) {
  EXPECT_EQ(CodecSeed({1, 2, 3}), CodecSeed({1, 2, 3}));
  EXPECT_NE(CodecSeed({1, 2, 3}), CodecSeed({2, 1, 3}));
  EXPECT_NE(CodecSeed({1, 2, 3}), CodecSeed({1, 2}));
  EXPECT_NE(CodecSeed({0, 0}), CodecSeed({0}));
  EXPECT_EQ(MixBits(0), 0xe220a8397b1dcdafu) << "the first output of SplitMix64 with seed 0";
}

}  // namespace
}  // namespace ballast
