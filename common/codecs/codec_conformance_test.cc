// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/codecs/codec.h"
#include "common/codecs/vector_code.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kSizes[] = {1, 7, 255, 256, 257, 1023, 1024, 1025, 4097, 100003};

double LargestOfBlock(absl::Span<const float> values, size_t i, size_t block) {
  double largest = 0;
  for (float value : values.subspan(i / block * block, block)) largest = std::max(largest, std::abs(double{value}));
  return largest;
}

double MeanOfBlock(absl::Span<const float> values, size_t i, size_t block) {
  double sum = 0;
  const auto all = values.subspan(i / block * block, block);
  for (float value : all) sum += std::abs(double{value});
  return sum / static_cast<double>(all.size());
}

// What a codec promises: one line for each.
struct Case {
  std::string name;
  v1::Encoding encoding;
  bool carries_values;
  bool wants_error_feedback;
  std::function<size_t(size_t elements)> bytes;
  // How far element i may be off.
  std::function<double(absl::Span<const float> values, size_t i)> bound;
  // Whether infinity and NaN arrive; else they make the payload one that is refused.
  bool carries_non_finite;
};

void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }

const Case kCases[] = {
    {"fp32", v1::ENCODING_FP32, true, false, [](size_t n) { return 4 * n; }, [](auto, size_t) { return 0.0; }, true},
    {"fp16", v1::ENCODING_FP16, true, false, [](size_t n) { return 2 * n; },
     [](auto x, size_t i) { return std::abs(x[i]) * 0x1p-11 + 0x1p-25; }, true},
    {"bf16", v1::ENCODING_BF16, true, false, [](size_t n) { return 2 * n; },
     [](auto x, size_t i) { return std::abs(x[i]) * 0x1p-8 + 0x1p-134; }, true},
    {"int8", v1::ENCODING_INT8, true, true, [](size_t n) { return n + 4 * ((n + 255) / 256); },
     [](auto x, size_t i) { return 1.00001 * std::max(LargestOfBlock(x, i, 256) / 127, double{FLT_MIN}); }, false},
    {"top_k", v1::ENCODING_TOP_K, false, true, [](size_t n) { return 8 * ((n + 99) / 100); },
     [](auto x, size_t i) { return std::abs(double{x[i]}); }, true},
    {"sign", v1::ENCODING_SIGN, false, true, [](size_t n) { return 4 * ((n + 1023) / 1024) + (n + 7) / 8; },
     [](auto x, size_t i) {
       const double mean = MeanOfBlock(x, i, 1024);
       return std::abs(std::abs(double{x[i]}) - mean) + mean * 1e-6 + double{FLT_TRUE_MIN};
     },
     false},
};

const Codec& Find(v1::Encoding encoding) { return **FindCodec(encoding); }

std::vector<float> RandomValues(size_t n, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.01f);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

std::string Encoded(const Codec& codec, absl::Span<const float> values, uint64_t seed = 7) {
  // One byte in, for a message's memory is aligned to nothing; the last byte shows who writes too far.
  std::string memory(codec.EncodedBytes(values.size()) + 2, '\x5a');
  EXPECT_EQ(codec.Encode(values, seed, &memory[1]), memory.size() - 2);
  EXPECT_EQ(memory.back(), '\x5a');
  return memory.substr(1, memory.size() - 2);
}

absl::StatusOr<std::vector<float>> Decoded(const Codec& codec, Codec::Pieces pieces, size_t elements) {
  std::vector<float> values(elements, -77.0f);
  if (absl::Status status = codec.Decode(pieces, absl::MakeSpan(values)); !status.ok()) {
    EXPECT_EQ(values, std::vector<float>(elements, -77.0f)) << "written before it was refused";
    return status;
  }
  return values;
}

absl::StatusOr<std::vector<float>> Decoded(const Codec& codec, absl::string_view payload, size_t elements) {
  return Decoded(codec, absl::MakeConstSpan(&payload, 1), elements);
}

std::vector<float> RoundTrip(const Codec& codec, absl::Span<const float> values, uint64_t seed = 7) {
  auto decoded = Decoded(codec, Encoded(codec, values, seed), values.size());
  EXPECT_TRUE(decoded.ok()) << decoded.status();
  return decoded.ok() ? *decoded : std::vector<float>(values.size(), -77.0f);
}

std::vector<uint32_t> Bits(absl::Span<const float> values) {
  std::vector<uint32_t> bits;
  for (float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

absl::string_view RefusalOf(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return status.message();
}

class CodecConformanceTest : public testing::TestWithParam<Case> {
 protected:
  const Case& case_ = GetParam();
  const Codec& codec_ = Find(case_.encoding);
};

TEST_P(CodecConformanceTest, SaysWhatItIs) {
  EXPECT_EQ(codec_.encoding(), case_.encoding);
  EXPECT_EQ(codec_.name(), case_.name);
  EXPECT_EQ(codec_.carries_values(), case_.carries_values);
  EXPECT_EQ(codec_.wants_error_feedback(), case_.wants_error_feedback);
  EXPECT_EQ(*FindCodecByName(case_.name), &codec_);
}

TEST_P(CodecConformanceTest, RoundTripStaysWithinItsErrorAtEverySize) {
  for (size_t n : kSizes) {
    const std::vector<float> values = RandomValues(n);
    EXPECT_EQ(Encoded(codec_, values).size(), case_.bytes(n)) << n;
    const std::vector<float> decoded = RoundTrip(codec_, values);
    size_t outside = 0;
    for (size_t i = 0; i<n; i += n> 5000 ? 37 : 1) {
      outside += std::abs(double{decoded[i]} - values[i]) <= case_.bound(values, i) ? 0 : 1;
    }
    EXPECT_EQ(outside, 0) << n;
  }
}

TEST_P(CodecConformanceTest, RoundTripKeepsSpecialValuesWithinItsError) {
  const std::vector<float> inputs[] = {
      {0, 0, 0},
      {0.0f, -0.0f},
      {FLT_MIN, -FLT_MIN, FLT_MIN / 2, FLT_TRUE_MIN, -FLT_TRUE_MIN},
      {FLT_TRUE_MIN * 100, FLT_TRUE_MIN * 180, -FLT_TRUE_MIN * 3},
      {1e-38f, -3e-39f, 6e-8f, 6e-5f, 6.1e-5f, -2.98e-8f, 2.99e-8f, 0x1p-14f, 0x1p-24f, 0x1p-25f},
      {65504, -65504, 65519.996f, 1, -1, 0.333333f},
      {1e30f, -1e-30f, 1, 0, 127},
      // The largest that bf16 does not round to infinity.
      {0x1.fep127f, -0x1.fep127f, 1},
  };
  for (const std::vector<float>& values : inputs) {
    // Beyond what a binary16 holds: another test's.
    if (case_.name == "fp16" && std::abs(values[0]) > 65520) continue;
    const std::vector<float> decoded = RoundTrip(codec_, values);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_LE(std::abs(double{decoded[i]} - values[i]), case_.bound(values, i)) << values[i] << " as " << decoded[i];
    }
  }
}

TEST_P(CodecConformanceTest, LargestFloatIsCarriedOrBecomesInfinity) {
  const std::vector<float> values = {FLT_MAX, -FLT_MAX};
  const std::vector<float> decoded = RoundTrip(codec_, values);
  if (case_.name == "fp16" || case_.name == "bf16") {
    EXPECT_EQ(decoded, (std::vector<float>{kInfinity, -kInfinity}));
    return;
  }
  EXPECT_FLOAT_EQ(decoded[0], FLT_MAX);
  EXPECT_FLOAT_EQ(decoded[1], case_.name == "top_k" ? 0 : -FLT_MAX);
}

TEST_P(CodecConformanceTest, InfinityAndNaNArriveOrAreRefusedButAreNeverLost) {
  for (float special : {kInfinity, -kInfinity, kNaN}) {
    std::vector<float> values = RandomValues(300);
    values[299] = special;
    auto decoded = Decoded(codec_, Encoded(codec_, values), values.size());
    EXPECT_EQ(decoded.ok(), case_.carries_non_finite) << special;
    if (!decoded.ok()) {
      EXPECT_NE(RefusalOf(decoded.status()).find("want a finite one"), absl::string_view::npos) << decoded.status();
    } else if (std::isnan(special)) {
      EXPECT_TRUE(std::isnan((*decoded)[299]));
    } else {
      EXPECT_EQ((*decoded)[299], special);
    }
  }
}

TEST_P(CodecConformanceTest, PiecesCutAnywhereGiveTheSameElements) {
  std::mt19937 random(3);
  for (size_t n : kSizes) {
    const std::vector<float> values = RandomValues(n);
    const std::string payload = Encoded(codec_, values);
    const std::vector<float> want = RoundTrip(codec_, values);
    for (size_t largest_piece : {size_t{1}, size_t{3}, size_t{7}, size_t{1000}, size_t{16384}}) {
      // Copies, so that each piece is aligned to nothing and a read past its end is found.
      std::vector<std::string> copies;
      for (size_t at = 0; at < payload.size(); at += copies.back().size()) {
        copies.push_back("?" + payload.substr(at, 1 + random() % largest_piece));
        copies.back().shrink_to_fit();
        copies.back().erase(0, 1);
        if (random() % 8 == 0) copies.insert(copies.end() - 1, std::string());
      }
      const std::vector<absl::string_view> pieces(copies.begin(), copies.end());
      auto got = Decoded(codec_, pieces, n);
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(*got, want) << n << " elements, pieces of up to " << largest_piece << " bytes";
    }
  }
}

TEST_P(CodecConformanceTest, BlocksOfAnySizeGiveTheSameElements) {
  std::mt19937 random(4);
  for (size_t n : kSizes) {
    const std::vector<float> values = RandomValues(n);
    const std::string payload = Encoded(codec_, values);
    const std::vector<float> want = RoundTrip(codec_, values);
    const absl::string_view piece = payload;
    std::vector<float> blocks;
    EXPECT_TRUE(codec_
                    .DecodeBlocks({&piece, 1}, n,
                                  [&](size_t first, absl::Span<const float> block) {
                                    EXPECT_EQ(first, blocks.size());
                                    EXPECT_EQ(block.size(), std::min(Codec::kBlockElements, n - first));
                                    blocks.insert(blocks.end(), block.begin(), block.end());
                                  })
                    .ok());
    EXPECT_EQ(blocks, want);
    auto decoder = codec_.OpenPayload({&piece, 1}, n);
    ASSERT_TRUE(decoder.ok()) << decoder.status();
    std::vector<float> odd(n, -77.0f);
    for (size_t at = 0; at < n;) {
      const size_t count = std::min<size_t>(n - at, random() % 700);
      (*decoder)->Next(absl::MakeSpan(odd).subspan(at, count));
      at += count;
    }
    EXPECT_EQ(odd, want);
  }
}

TEST_P(CodecConformanceTest, PayloadOfNoElementsIsEmpty) {
  EXPECT_EQ(codec_.EncodedBytes(0), 0);
  EXPECT_EQ(codec_.Encode({}, 1, nullptr), 0);
  EXPECT_TRUE(codec_.Decode({}, {}).ok());
  EXPECT_EQ(Decoded(codec_, "x", 0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(CodecConformanceTest, RefusesPayloadShorterOrLongerThanItsElements) {
  const std::string payload = Encoded(codec_, RandomValues(1500));
  for (const std::string& wrong :
       {std::string(), payload.substr(1), payload + "x", payload.substr(0, 1), payload + std::string(12000, '\0')}) {
    auto decoded = Decoded(codec_, wrong, 1500);
    ASSERT_FALSE(decoded.ok()) << wrong.size();
    const std::string got = absl::StrCat(case_.name, " payload has ", wrong.size(), " bytes, want ");
    EXPECT_TRUE(absl::StartsWith(RefusalOf(decoded.status()), got)) << decoded.status();
    EXPECT_TRUE(absl::EndsWith(decoded.status().message(), " for 1500 elements")) << decoded.status();
  }
}

TEST_P(CodecConformanceTest, RefusesElementCountsWhoseBytesWouldOverflow) {
  const absl::string_view piece = "12345678";
  for (size_t elements : {Codec::kMaxElements + 1, size_t{1} << 61, size_t{1} << 62, ~size_t{0}}) {
    auto status = codec_.DecodeBlocks({&piece, 1}, elements, [](size_t, absl::Span<const float>) { FAIL(); });
    EXPECT_NE(RefusalOf(status).find("want at most 2147483648"), absl::string_view::npos) << status;
  }
}

TEST_P(CodecConformanceTest, SameSeedGivesTheSameBytes) {
  const std::vector<float> values = RandomValues(5000);
  EXPECT_EQ(Encoded(codec_, values, 11), Encoded(codec_, values, 11));
  // Only int8 is rounded at random.
  EXPECT_EQ(Encoded(codec_, values, 11) != Encoded(codec_, values, 12), case_.name == "int8");
}

TEST_P(CodecConformanceTest, PortableCodeGivesTheSameBits) {
  if (!UseVectorCode()) GTEST_SKIP() << "this processor has no AVX2 and F16C: only portable code runs";
  std::vector<std::vector<float>> inputs;
  for (size_t n : kSizes) inputs.push_back(RandomValues(n));
  // Every exponent and sign, NaNs of all kinds among them.
  inputs.emplace_back();
  std::mt19937 random(5);
  for (int i = 0; i < 100000; ++i) inputs.back().push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  // Every half, as a float and its neighbours, and what lies in the middle between two halves.
  inputs.emplace_back();
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    for (int off : {-1, 0, 1}) {
      inputs.back().push_back(std::bit_cast<float>((bits << 16) + off));
      inputs.back().push_back(std::bit_cast<float>((bits << 16) + 0x8000 + off));
      inputs.back().push_back(std::bit_cast<float>(0x37000000 + (bits << 12) + off));
    }
  }
  for (const std::vector<float>& values : inputs) {
    const std::string payload = Encoded(codec_, values);
    const auto decoded = Decoded(codec_, payload, values.size());
    const PortableCodeOnly portable;
    EXPECT_TRUE(Encoded(codec_, values) == payload) << values.size();
    const auto again = Decoded(codec_, payload, values.size());
    ASSERT_EQ(decoded.ok(), again.ok());
    EXPECT_TRUE(!decoded.ok() || Bits(*decoded) == Bits(*again)) << values.size();
  }
}

INSTANTIATE_TEST_SUITE_P(EveryCodec, CodecConformanceTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

class RoundingTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) portable_.emplace();
  }
  std::optional<PortableCodeOnly> portable_;
};

// Repeated, so that whole vectors of them are turned.
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
      EXPECT_TRUE(std::isnan(fp16[half])) << half;
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
  const std::vector<float> decoded = RoundTrip(Find(v1::ENCODING_INT8), [] {
    std::vector<float> values(256, 0.5f);
    values[0] = 127;
    return values;
  }());
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
  config.set_top_k_share(share);
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
  // Of one magnitude class, apart by the last bit.
  EXPECT_EQ(RoundTrip(*TopKOf(0.25f), {1, 1 + FLT_EPSILON, 1, 1}), (std::vector<float>{0, 1 + FLT_EPSILON, 0, 0}));
}

TEST(TopKTest, SendsWhatSortingWouldChoose) {
  for (float share : {0.001f, 0.01f, 0.3f, 0.999f}) {
    for (size_t n : kSizes) {
      std::vector<float> values = RandomValues(n, 21);
      // So that many are equal.
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
    codec.set_top_k_share(share);
    EXPECT_NE(RefusalOf(ValidateCodec(codec)).find("top_k_share: got"), absl::string_view::npos) << share;
  }
  codec.set_top_k_share(1);
  EXPECT_TRUE(ValidateCodec(codec).ok());
}

}  // namespace
}  // namespace ballast
