// SPDX-License-Identifier: Apache-2.0
#include "common/codecs/codec.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "common/codecs/testing/round_trip.h"
#include "common/simd/instruction_set.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

class RoundingTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) portable_.emplace(InstructionSet::kPortable);
  }
  std::optional<ScopedInstructionSet> portable_;
};

// Repeated, so that whole vectors are converted.
std::vector<float> Sixteen(float value) { return std::vector<float>(16, value); }

TEST_P(RoundingTest, Fp16RoundsToNearestEven) {
  const Codec& fp16 = Find(v1::ENCODING_FP16);
  const struct {
    float value, want;
  } cases[] = {{1 + 0x1p-11f, 1},
               {1 + 3 * 0x1p-11f, 1 + 0x1p-9f},
               {1 + 0x1p-11f + 0x1p-23f, 1 + 0x1p-10f},
               {2049, 2048},
               {2051, 2052},
               {-2049, -2048},
               {65519.996f, 65504},
               {65520, kInfinity},
               {-65520, -kInfinity},
               {0x1p-25f, 0},
               {0x1.8p-24f, 0x1p-23f},
               {0x1.000002p-25f, 0x1p-24f},
               {0x1.ff8p-15f, 0x1.ff8p-15f},
               {0x1.ffcp-15f, 0x1p-14f}};
  for (const auto& c : cases) EXPECT_EQ(RoundTrip(fp16, Sixteen(c.value)), Sixteen(c.want)) << c.value;
}

TEST_P(RoundingTest, Bf16RoundsToNearestEven) {
  const Codec& bf16 = Find(v1::ENCODING_BF16);
  const struct {
    float value, want;
  } cases[] = {{1 + 0x1p-8f, 1},
               {1 + 3 * 0x1p-8f, 1 + 0x1p-6f},
               {1 + 0x1p-8f + 0x1p-23f, 1 + 0x1p-7f},
               {257, 256},
               {259, 260},
               {-257, -256},
               {0x1.fep127f, 0x1.fep127f},
               {0x1.ffp127f, kInfinity},
               {0x1p-134f, 0},
               {0x1.8p-133f, 0x1p-132f}};
  for (const auto& c : cases) EXPECT_EQ(RoundTrip(bf16, Sixteen(c.value)), Sixteen(c.want)) << c.value;
}

TEST_P(RoundingTest, Bf16KeepsANaNWhosePayloadIsCutOff) {
  const float almost_infinity = std::bit_cast<float>(0x7f800001u);
  for (float value : RoundTrip(Find(v1::ENCODING_BF16), Sixteen(almost_infinity))) EXPECT_TRUE(std::isnan(value));
}

TEST_P(RoundingTest, EveryHalfIsDecodedToItsValue) {
  std::string payload;
  for (uint32_t half = 0; half < 65536; ++half) payload += {static_cast<char>(half), static_cast<char>(half >> 8)};
  const std::vector<float> fp16 = *Decoded(Find(v1::ENCODING_FP16), payload, 65536);
  const std::vector<float> bf16 = *Decoded(Find(v1::ENCODING_BF16), payload, 65536);
  for (uint32_t half = 0; half < 65536; ++half) {
    EXPECT_EQ(std::bit_cast<uint32_t>(bf16[half]), half << 16);
    const int exponent = half >> 10 & 0x1f, mantissa = half & 0x3ff;
    EXPECT_EQ(std::signbit(fp16[half]), half >= 0x8000);
    if (exponent == 31 && mantissa != 0) {
      // Quiet, with the half's payload.
      const uint32_t sign = half >> 15 << 31;
      EXPECT_EQ(std::bit_cast<uint32_t>(fp16[half]), sign | 0x7fc00000 | static_cast<uint32_t>(mantissa) << 13) << half;
    } else {
      const float magnitude = exponent == 31  ? kInfinity
                              : exponent == 0 ? std::ldexp(mantissa, -24)
                                              : std::ldexp(1024 + mantissa, exponent - 25);
      EXPECT_EQ(std::abs(fp16[half]), magnitude) << half;
    }
  }
}

TEST_P(RoundingTest, Int8IsUnbiased) {
  const Codec& int8 = Find(v1::ENCODING_INT8);
  constexpr int kSeeds = 4000;
  const std::vector<float> values = RandomValues(300, 9);
  std::vector<double> sums(values.size(), 0.0);
  for (int seed = 0; seed < kSeeds; ++seed) {
    const std::vector<float> decoded = RoundTrip(int8, values, seed);
    for (size_t i = 0; i < values.size(); ++i) sums[i] += decoded[i];
  }
  double of_all = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    // The mean's standard deviation is at most scale / 2 / sqrt(kSeeds).
    const double deviation = LargestOfBlock(values, i, 256) / 127 / 2 / std::sqrt(kSeeds);
    EXPECT_NEAR(sums[i] / kSeeds, values[i], 5 * deviation) << i;
    of_all += (sums[i] / kSeeds - values[i]) / deviation;
  }
  EXPECT_LT(std::abs(of_all), 5 * std::sqrt(300));
}

TEST_P(RoundingTest, Int8RoundsEachElementByItself) {
  std::vector<float> values(256, 0.5f);
  values[0] = 127;
  const std::vector<float> decoded = RoundTrip(Find(v1::ENCODING_INT8), values);
  const auto ones = std::count(decoded.begin(), decoded.end(), 1.0f);
  EXPECT_EQ(ones + std::count(decoded.begin(), decoded.end(), 0.0f), 255);
  EXPECT_GT(ones, 88);
  EXPECT_LT(ones, 168);
}

INSTANTIATE_TEST_SUITE_P(EveryCode, RoundingTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "portable" : "fastest"; });

std::string Bytes(std::initializer_list<int> bytes) { return std::string(bytes.begin(), bytes.end()); }

// 1.0f is 00 00 80 3f; 2.0f is 00 00 00 40; -2.0f is 00 00 00 c0.
TEST(CodecLayoutTest, BytesAreThoseThatTensorProtoDescribes) {
  EXPECT_EQ(Encoded(Find(v1::ENCODING_FP32), {1.0f, -2.0f}), Bytes({0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}));
  EXPECT_EQ(Encoded(Find(v1::ENCODING_FP16), {1.0f, -2.0f}), Bytes({0, 0x3c, 0, 0xc0}));
  EXPECT_EQ(Encoded(Find(v1::ENCODING_BF16), {1.0f, -2.0f}), Bytes({0x80, 0x3f, 0, 0xc0}));
  EXPECT_EQ(Encoded(Find(v1::ENCODING_INT8), {127.0f, -2.0f}), Bytes({0, 0, 0x80, 0x3f, 127, -2}));
  EXPECT_EQ(Encoded(Find(v1::ENCODING_TOP_K), {1.0f, -2.0f}), Bytes({1, 0, 0, 0, 0, 0, 0, 0xc0}));
  EXPECT_EQ(Encoded(Find(v1::ENCODING_SIGN), {1.0f, -2.0f, 3.0f, -2.0f}), Bytes({0, 0, 0, 0x40, 0b1010}));
}

TEST(CodecLayoutTest, Int8SendsAtLeast3Point9TimesFewerBytesThanFp32) {
  for (size_t elements : {size_t{1} << 16, size_t{1044480}, size_t{784 * 512}}) {
    EXPECT_GE(4.0 * elements / Find(v1::ENCODING_INT8).EncodedBytes(elements), 3.9) << elements;
  }
}

TEST(CodecLayoutTest, RefusesScaleThatIsNotFinite) {
  const std::string infinity = Bytes({0, 0, 0x80, 0x7f}), one = Bytes({0, 0, 0x80, 0x3f});
  EXPECT_EQ(RefusalOf(Decoded(Find(v1::ENCODING_INT8), one + infinity + std::string(300, '\1'), 300).status()),
            "int8 payload: scale of block 1 is inf, want a finite one");
  EXPECT_EQ(RefusalOf(Decoded(Find(v1::ENCODING_SIGN), infinity + "\1", 8).status()),
            "sign payload: scale of block 0 is inf, want a finite one");
}

absl::Status DecodeTopK(std::vector<uint32_t> indices, size_t elements) {
  std::string payload(reinterpret_cast<const char*>(indices.data()), indices.size() * 4);
  payload += std::string(indices.size() * 4, '\1');
  return Decoded(Find(v1::ENCODING_TOP_K), payload, elements).status();
}

TEST(TopKTest, RefusesIndicesOutOfRangeOrNotAscending) {
  EXPECT_TRUE(DecodeTopK({0, 5, 9}, 10).ok());
  EXPECT_EQ(RefusalOf(DecodeTopK({0, 10}, 10)), "top_k payload: index 1 is 10, want less than 10");
  EXPECT_EQ(RefusalOf(DecodeTopK({0xffffffff}, 10)), "top_k payload: index 0 is 4294967295, want less than 10");
  EXPECT_EQ(RefusalOf(DecodeTopK({3, 3}, 10)), "top_k payload: index 1 is 3, want at least 4 (ascending)");
  EXPECT_EQ(RefusalOf(DecodeTopK({4, 3}, 10)), "top_k payload: index 1 is 3, want at least 5 (ascending)");
  EXPECT_EQ(RefusalOf(DecodeTopK({0, 1, 2}, 2)),
            "top_k payload has 24 bytes, want a multiple of 8, at least that and at most 16 for 2 elements");
}

std::unique_ptr<const Codec> TopKOf(float share) {
  v1::Codec config;
  config.set_gradients(v1::ENCODING_TOP_K);
  config.set_top_k_fraction(share);
  return *MakeGradientCodec(config);
}

TEST(TopKTest, SendsTheShareThatWasAskedForRoundedUp) {
  EXPECT_EQ(TopKOf(0.1f)->EncodedBytes(1000), 8 * 100);
  EXPECT_EQ(TopKOf(0.1f)->EncodedBytes(1001), 8 * 101);
  EXPECT_EQ(TopKOf(0.01f)->EncodedBytes(5), 8);
  EXPECT_EQ(TopKOf(0)->EncodedBytes(1000), 8 * 10) << "0.01 where it is not set";
  EXPECT_EQ(TopKOf(1)->EncodedBytes(1044480), 8 * 1044480);
}

TEST(TopKTest, KeepsTheLargestAndOfEqualOnesTheFirst) {
  EXPECT_EQ(RoundTrip(*TopKOf(0.5f), {1, -3, 2, 0, 5, -2}), (std::vector<float>{0, -3, 2, 0, 5, 0}));
  EXPECT_EQ(RoundTrip(*TopKOf(0.5f), {2, -2, 2, 2, -2, 2}), (std::vector<float>{2, -2, 2, 0, 0, 0}));
  EXPECT_EQ(RoundTrip(*TopKOf(0.5f), {0, 0, 0, 0}), (std::vector<float>{0, 0, 0, 0}));
  EXPECT_EQ(RoundTrip(*TopKOf(1), {1, 0, -3}), (std::vector<float>{1, 0, -3}));
  // Same magnitude class, different in the last bit.
  EXPECT_EQ(RoundTrip(*TopKOf(0.25f), {1, 1 + FLT_EPSILON, 1, 1}), (std::vector<float>{0, 1 + FLT_EPSILON, 0, 0}));
}

TEST(TopKTest, SendsWhatSortingWouldChoose) {
  for (float share : {0.001f, 0.01f, 0.3f, 0.999f}) {
    for (size_t n : kSizes) {
      std::vector<float> values = RandomValues(n, 21);
      // Rounded, so that many values are equal.
      for (float& value : values) value = std::round(value * 500) / 500;
      const auto codec = TopKOf(share);
      std::vector<size_t> order(n);
      for (size_t i = 0; i < n; ++i) order[i] = i;
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return std::abs(values[a]) > std::abs(values[b]); });
      std::vector<float> want(n, 0.0f);
      for (size_t i = 0; i < codec->EncodedBytes(n) / 8; ++i) want[order[i]] = values[order[i]];
      EXPECT_TRUE(RoundTrip(*codec, values) == want) << share << " of " << n;
    }
  }
}

TEST(SignTest, SendsTheMeanMagnitudeOfEachBlock) {
  std::vector<float> values(1026, -3.0f);
  values[5] = 3;
  values[1024] = 1;
  values[1025] = -2;
  std::vector<float> want = values;
  want[1024] = 1.5f;
  want[1025] = -1.5f;
  EXPECT_EQ(RoundTrip(Find(v1::ENCODING_SIGN), values), want);
}

TEST(FindCodecTest, UnspecifiedIsFp32) { EXPECT_EQ(Find(v1::ENCODING_UNSPECIFIED).name(), "fp32"); }

TEST(FindCodecTest, OnlyFp32SendsFloats) {
  EXPECT_TRUE(SendsFloats(v1::ENCODING_UNSPECIFIED));
  EXPECT_TRUE(SendsFloats(v1::ENCODING_FP32));
  EXPECT_FALSE(SendsFloats(v1::ENCODING_BF16));
}

TEST(FindCodecTest, SaysWhatExistsWhereAnEncodingIsUnknown) {
  EXPECT_EQ(RefusalOf(FindCodec(static_cast<v1::Encoding>(77)).status()),
            "unknown encoding 77, want one of fp32, fp16, bf16, int8, top_k, sign");
}

TEST(FindCodecTest, SuggestsTheNearestName) {
  EXPECT_EQ(RefusalOf(FindCodecByName("bf61").status()),
            "unknown codec \"bf61\", want one of fp32, fp16, bf16, int8, top_k, sign (did you mean bf16?)");
  EXPECT_EQ(RefusalOf(FindCodecByName("zstandard").status()),
            "unknown codec \"zstandard\", want one of fp32, fp16, bf16, int8, top_k, sign");
}

TEST(ValidateCodecTest, RefusesWhatIsOutOfLimits) {
  v1::Codec codec;
  EXPECT_TRUE(ValidateCodec(codec).ok());
  codec.set_values(v1::ENCODING_SIGN);
  EXPECT_EQ(RefusalOf(ValidateCodec(codec)),
            "codec of values: got sign, which is for gradients only; want one of fp32, fp16, bf16, int8");
  codec.set_values(static_cast<v1::Encoding>(9));
  EXPECT_EQ(RefusalOf(ValidateCodec(codec)),
            "codec of values: unknown encoding 9, want one of fp32, fp16, bf16, int8, top_k, sign");
  codec.set_values(v1::ENCODING_INT8);
  codec.set_gradients(static_cast<v1::Encoding>(-1));
  EXPECT_EQ(RefusalOf(MakeGradientCodec(codec).status()),
            "codec of gradients: unknown encoding -1, want one of fp32, fp16, bf16, int8, top_k, sign");
  codec.set_gradients(v1::ENCODING_TOP_K);
  for (float share : {-0.1f, 1.5f, kNaN, kInfinity}) {
    codec.set_top_k_fraction(share);
    EXPECT_NE(RefusalOf(ValidateCodec(codec)).find("top_k_fraction: got"), absl::string_view::npos) << share;
  }
  codec.set_top_k_fraction(1);
  EXPECT_TRUE(ValidateCodec(codec).ok());
}

TEST(CodecSeedTest, DependsOnEachNumberAndTheirOrder) {
  EXPECT_EQ(CodecSeed({1, 2, 3}), CodecSeed({1, 2, 3}));
  EXPECT_NE(CodecSeed({1, 2, 3}), CodecSeed({2, 1, 3}));
  EXPECT_NE(CodecSeed({1, 2, 3}), CodecSeed({1, 2}));
  EXPECT_NE(CodecSeed({0, 0}), CodecSeed({0}));
  EXPECT_EQ(MixBits(0), 0xe220a8397b1dcdafu) << "the first output of SplitMix64 with seed 0";
}

}  // namespace

}  // namespace ballast
