// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <functional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/codecs/codec.h"
#include "common/codecs/testing/round_trip.h"
#include "common/simd/instruction_set.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

double MeanOfBlock(absl::Span<const float> values, size_t i, size_t block) {
  double sum = 0;
  const auto all = values.subspan(i / block * block, block);
  for (float value : all) sum += std::abs(double{value});
  return sum / static_cast<double>(all.size());
}

// Promises of one codec.
struct Case {
  std::string name;
  v1::Encoding encoding;
  bool carries_values;
  bool wants_error_feedback;
  std::function<size_t(size_t elements)> bytes;
  // Maximum error of element i.
  std::function<double(absl::Span<const float> values, size_t i)> bound;
  // True if infinity and NaN survive; otherwise a payload with them is refused.
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
    // Beyond the range of binary16, which another test covers.
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
  EXPECT_TRUE(std::isfinite(decoded[0])) << "rounded up to infinity";
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
      // Copies, so that each piece is unaligned and a read past its end is detected.
      std::vector<std::string> copies;
      for (size_t at = 0; at < payload.size(); at += copies.back().size()) {
        copies.push_back("?" + payload.substr(at, 1 + random() % largest_piece));
        copies.back().shrink_to_fit();
        copies.back().erase(0, 1);
        if (random() % 8 == 0) copies.insert(copies.end() - 1, std::string());
      }
      const std::vector<absl::string_view> pieces(copies.begin(), copies.end());
      auto got = Decoded(codec_, pieces, n).value();
      EXPECT_EQ(got, want) << n << " elements, pieces of up to " << largest_piece << " bytes";
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
    const auto append = [&](size_t first, absl::Span<const float> block) {
      EXPECT_EQ(first, blocks.size());
      EXPECT_EQ(block.size(), std::min(Codec::kBlockElements, n - first));
      blocks.insert(blocks.end(), block.begin(), block.end());
    };
    EXPECT_TRUE(codec_.DecodeBlocks({&piece, 1}, n, append).ok());
    EXPECT_EQ(blocks, want);
    auto decoder = codec_.OpenPayload({&piece, 1}, n).value();
    std::vector<float> odd(n, -77.0f);
    for (size_t at = 0; at < n;) {
      const size_t count = std::min<size_t>(n - at, random() % 700);
      decoder->Next(absl::MakeSpan(odd).subspan(at, count));
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

TEST_P(CodecConformanceTest, AnyBytesAreDecodedOrRefused) {
  std::mt19937 random(6);
  for (int i = 0; i < 2000; ++i) {
    const size_t elements = 1 + random() % 1100;
    std::string payload(random() % 2 == 0 ? codec_.EncodedBytes(elements) : random() % 300, '\0');
    // Changes only a few bytes, so that scales and indices are sometimes valid.
    for (char& byte : payload) byte = random() % 64 == 0 ? static_cast<char>(random()) : '\0';
    auto decoded = Decoded(codec_, payload, elements);
    EXPECT_TRUE(decoded.ok() || absl::IsInvalidArgument(decoded.status())) << decoded.status();
  }
}

TEST_P(CodecConformanceTest, SameSeedGivesTheSameBytes) {
  const std::vector<float> values = RandomValues(5000);
  EXPECT_EQ(Encoded(codec_, values, 11), Encoded(codec_, values, 11));
  // Only int8 uses stochastic rounding.
  EXPECT_EQ(Encoded(codec_, values, 11) != Encoded(codec_, values, 12), case_.name == "int8");
}

TEST_P(CodecConformanceTest, PortableCodeGivesTheSameBits) {
  if (ChosenInstructionSet() == InstructionSet::kPortable) GTEST_SKIP() << "only portable code runs on this processor";
  std::vector<std::vector<float>> inputs;
  for (size_t n : kSizes) inputs.push_back(RandomValues(n));
  // Every exponent and sign, including NaNs of all kinds.
  inputs.emplace_back();
  std::mt19937 random(5);
  for (int i = 0; i < 100000; ++i) inputs.back().push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  // Every half as a float, its neighbors, and the midpoints between two halves.
  inputs.emplace_back();
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    for (int off : {-1, 0, 1}) {
      inputs.back().push_back(std::bit_cast<float>((bits << 16) + off));
      inputs.back().push_back(std::bit_cast<float>((bits << 16) + 0x8000 + off));
      inputs.back().push_back(std::bit_cast<float>(0x37000000 + (bits << 12) + off));
    }
  }
  for (const std::vector<float>& values : inputs) {
    const ScopedInstructionSet portable(InstructionSet::kPortable);
    const std::string payload = Encoded(codec_, values);
    const auto decoded = Decoded(codec_, payload, values.size());
    for (InstructionSet set : AvailableInstructionSets()) {
      const ScopedInstructionSet scoped(set);
      EXPECT_TRUE(Encoded(codec_, values) == payload) << values.size();
      const auto again = Decoded(codec_, payload, values.size());
      ASSERT_EQ(decoded.ok(), again.ok());
      EXPECT_TRUE(!decoded.ok() || Bits(*decoded) == Bits(*again)) << values.size();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryCodec, CodecConformanceTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ballast
