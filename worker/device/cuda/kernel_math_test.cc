// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "worker/device/cuda/kernels/activation_math.h"
#include "worker/device/cuda/kernels/half_math.h"
#include "worker/device/cuda/kernels/pair_math.h"
#include "worker/device/cuda/kernels/philox_math.h"
#include "worker/device/philox.h"

// Checks on the CPU what the kernels compute for one element.
namespace ballast {
namespace {

TEST(PhiloxMathTest, DrawsTheWordsOfTheCpusGenerator) {
  for (uint32_t i = 0; i < 1000; ++i) {
    const uint32_t a = i * 2654435761u, b = i ^ 0xdeadbeef, c = ~i, d = i << 20;
    const std::array<uint32_t, 4> want = Philox({a, b, c, d}, {d, a});
    const PhiloxWords got = PhiloxDraw({{a, b, c, d}}, {d, a});
    for (int k = 0; k < 4; ++k) ASSERT_EQ(got.word[k], want[k]) << i;
  }
}

TEST(PhiloxMathTest, ADropoutsWordsDependOnAllOfItsKey) {
  const uint32_t word = DropoutWords({1, 2, 3}, 4).word[0];
  EXPECT_NE(DropoutWords({1 + (uint64_t{1} << 32), 2, 3}, 4).word[0], word);
  EXPECT_NE(DropoutWords({1, 2 + (uint64_t{1} << 32), 3}, 4).word[0], word);
  EXPECT_NE(DropoutWords({1, 2, 4}, 4).word[0], word);
  EXPECT_NE(DropoutWords({1, 2, 3}, 4 + (uint64_t{1} << 32)).word[0], word);
}

TEST(ActivationMathTest, GeluAgreesWithPublishedValues) {
  // x * Phi(x), with Phi(1) = 0.8413447, Phi(-3) = 0.0013498980.
  EXPECT_NEAR(Activated<Activation::kGelu>(1.0f), 0.8413447f, 1e-6f);
  EXPECT_NEAR(Activated<Activation::kGelu>(-3.0f), -0.004049694f, 1e-8f);
}

TEST(ActivationMathTest, GradientsAgreeWithDifferences) {
  for (float x = -4.0f; x <= 4.0f; x += 0.37f) {
    const float step = 1.0f / 128;
    const auto slope = [&](auto f) { return (f(x + step) - f(x - step)) / (2 * step); };
    EXPECT_NEAR(ActivationGradient<Activation::kGelu>(x, 1.0f), slope(Activated<Activation::kGelu>), 1e-4f) << x;
    EXPECT_NEAR(ActivationGradient<Activation::kTanh>(x, 1.0f), slope(Activated<Activation::kTanh>), 1e-4f) << x;
    EXPECT_NEAR(ActivationGradient<Activation::kRelu>(x, 1.0f), x > 0 ? 1.0f : 0.0f, 0.0f) << x;
  }
}

TEST(PairMathTest, PairsFollowEachOther) {
  int64_t p = 0;
  for (int64_t v = 1; v < 700; ++v) {
    for (int64_t u = 0; u < v; ++u, ++p) {
      const Pair pair = PairOf(p);
      ASSERT_EQ(pair.v, v) << p;
      ASSERT_EQ(pair.u, u) << p;
      ASSERT_EQ(PairIndex(v, u), p);
      ASSERT_EQ(PairIndex(u, v), p);
    }
  }
}

TEST(PairMathTest, FindsPairsBeyondTheBitsOfAFloat) {
  for (const int64_t v : {5793, 70001, 1000003}) {
    for (const int64_t u : {int64_t{0}, v - 1}) {
      const Pair pair = PairOf(v * (v - 1) / 2 + u);
      EXPECT_EQ(pair.v, v);
      EXPECT_EQ(pair.u, u);
    }
  }
}

// The value of the bits of an IEEE half, below infinity.
float ValueOfFp16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                        : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

TEST(HalfMathTest, EveryHalfIsItsOwnAndWhatIsBetweenGoesToTheNearer) {
  for (uint16_t low = 0; low < 0x7bff; ++low) {
    const uint16_t high = low + 1;
    const float a = ValueOfFp16(low), b = ValueOfFp16(high), middle = (a + b) / 2;
    ASSERT_EQ(ToFp16(a), low);
    ASSERT_EQ(FromFp16(low), a);
    ASSERT_EQ(FromFp16(low | 0x8000), -a);
    ASSERT_EQ(ToFp16(-a), low | 0x8000);
    ASSERT_EQ(ToFp16(middle), low % 2 == 0 ? low : high) << low;
    ASSERT_EQ(ToFp16(std::nextafter(middle, 0.0f)), low) << low;
    ASSERT_EQ(ToFp16(std::nextafter(middle, 1e9f)), high) << low;
  }
}

TEST(HalfMathTest, WhatIsNotFiniteStaysSoOnTheWayBack) {
  EXPECT_EQ(FromFp16(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(FromFp16(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(FromFp16(0x7e00)));
  EXPECT_TRUE(std::isnan(FromBf16(0x7fc0)));
}

TEST(HalfMathTest, Bf16IsAFloatsUpperHalf) {
  EXPECT_EQ(FromBf16(0x3f80), 1.0f);
  EXPECT_EQ(FromBf16(0xc049), -3.140625f);
  EXPECT_EQ(FromBf16(0x7f80), std::numeric_limits<float>::infinity());
}

TEST(HalfMathTest, HalvesEndAtInfinityAndNan) {
  EXPECT_EQ(ToFp16(65504.0f), 0x7bff);
  EXPECT_EQ(ToFp16(65519.996f), 0x7bff);
  EXPECT_EQ(ToFp16(65520.0f), 0x7c00);
  EXPECT_EQ(ToFp16(-1e30f), 0xfc00);
  EXPECT_EQ(ToFp16(INFINITY), 0x7c00);
  EXPECT_GT(ToFp16(NAN) & 0x7fff, 0x7c00);
  EXPECT_EQ(ToFp16(1e-30f), 0);
}

TEST(HalfMathTest, Bf16IsTheUpperHalfRoundedToTheNearest) {
  EXPECT_EQ(ToBf16(1.0f), 0x3f80);
  // 1 + 2^-8 is a tie and rounds down to 1, which is even; 1 + 3 * 2^-8 is a tie and rounds up.
  EXPECT_EQ(ToBf16(1.00390625f), 0x3f80);
  EXPECT_EQ(ToBf16(1.01171875f), 0x3f82);
  EXPECT_EQ(ToBf16(1.0039064f), 0x3f81);
  EXPECT_EQ(ToBf16(-2.0f), 0xc000);
  EXPECT_EQ(ToBf16(3.4e38f), 0x7f80);
  EXPECT_EQ(ToBf16(INFINITY), 0x7f80);
  EXPECT_GT(ToBf16(NAN) & 0x7fff, 0x7f80);
}

}  // namespace
}  // namespace ballast
