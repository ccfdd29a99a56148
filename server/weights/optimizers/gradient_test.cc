// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/gradient.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "common/codecs/codec.h"
#include "common/simd/instruction_set.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

std::vector<float> Counting(size_t elements) {
  std::vector<float> values(elements);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

std::vector<float> Gather(const Gradient& gradient) {
  std::vector<float> all;
  gradient.ForEachBlock([&](size_t first, absl::Span<const float> block) {
    EXPECT_EQ(first, all.size());
    EXPECT_FALSE(block.empty());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data()) % alignof(float), 0u);
    all.insert(all.end(), block.begin(), block.end());
  });
  return all;
}

TEST(GradientTest, HandsOutAWholeArrayInBlocks) {
  const std::vector<float> values = Counting(10000);
  const Gradient gradient(values);
  EXPECT_EQ(gradient.size(), 10000u);
  EXPECT_EQ(Gather(gradient), values);
}

TEST(GradientTest, PutsElementsTogetherWhereverTheyWereCut) {
  const std::vector<float> values = Counting(9001);
  const absl::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  for (size_t piece_bytes : {1u, 3u, 4u, 7u, 16u, 4099u, 16384u, 16391u, 36000u}) {
    for (size_t shift : {0u, 1u, 2u, 3u}) {
      // Pieces of that size, each at an address with that remainder.
      std::vector<std::string> memory;
      std::vector<absl::string_view> pieces;
      for (size_t at = 0; at < bytes.size(); at += piece_bytes) {
        const absl::string_view piece = bytes.substr(at, piece_bytes);
        memory.push_back(std::string(64 + shift, ' ') + std::string(piece));
      }
      for (const std::string& copy : memory) pieces.push_back(absl::string_view(copy).substr(64 + shift));
      const Gradient gradient = *Gradient::Open(**FindCodec(v1::ENCODING_FP32), pieces, 9001);
      ASSERT_EQ(gradient.size(), 9001u);
      ASSERT_EQ(Gather(gradient), values) << piece_bytes << " bytes a piece, shift " << shift;
    }
  }
}

TEST(GradientTest, DecodesWhileItIsUsed) {
  const std::vector<float> values = Counting(5000);
  const Codec& codec = **FindCodec(v1::ENCODING_FP16);
  std::string payload(codec.EncodedBytes(5000), ' ');
  codec.Encode(values, 0, payload.data());
  const absl::string_view bytes = payload;
  const Gradient gradient = *Gradient::Open(codec, {bytes.substr(0, 777), bytes.substr(777)}, 5000);
  const std::vector<float> got = Gather(gradient);
  // With 11 bits of significand, whole numbers are exact up to 2048, and multiples of 2 up to 4096.
  EXPECT_EQ(got.size(), 5000u);
  EXPECT_EQ(got[2047], 2048.0f);
  EXPECT_NEAR(got[4000], 4001.0f, 1.0f);
  EXPECT_TRUE(gradient.AllFinite());
}

TEST(GradientTest, AddsWhileItIsUsed) {
  const std::vector<float> sum = Counting(9001), last(9001, 0.5f);
  const absl::string_view bytes(reinterpret_cast<const char*>(last.data()), last.size() * sizeof(float));
  const Codec& codec = **FindCodec(v1::ENCODING_FP32);
  const Gradient cut = *Gradient::Open(codec, {bytes.substr(0, 777), bytes.substr(777)}, 9001);
  for (const InstructionSet set : AvailableInstructionSets()) {
    const ScopedInstructionSet scope(set);
    const std::vector<float> got = Gather(Gradient::Sum(sum, 3, cut, 4));
    ASSERT_EQ(got.size(), 9001u);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], 3 * sum[i] + 2) << i << " with " << NameOf(set);
  }
  EXPECT_TRUE(Gradient::Sum(sum, 3, cut, 4).AllFinite());
  EXPECT_FALSE(Gradient::Sum(sum, 3, cut, std::numeric_limits<float>::infinity()).AllFinite());
}

TEST(GradientTest, CopiesAllItsElements) {
  const std::vector<float> values = Counting(9001);
  const absl::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  const Codec& fp32 = **FindCodec(v1::ENCODING_FP32);
  const Codec& fp16 = **FindCodec(v1::ENCODING_FP16);
  std::string payload(fp16.EncodedBytes(9001), ' ');
  fp16.Encode(values, 0, payload.data());
  const Gradient cut = *Gradient::Open(fp32, {bytes.substr(0, 777), bytes.substr(777)}, 9001);
  const absl::string_view encoded = payload;
  for (const Gradient& gradient : {cut, *Gradient::Open(fp16, {encoded}, 9001), Gradient::Sum(values, 2, cut, 1)}) {
    std::vector<float> copy(9001);
    gradient.CopyTo(copy.data());
    EXPECT_EQ(copy, Gather(gradient));
  }
}

TEST(GradientTest, RefusesAPayloadThatIsNotOfItsElements) {
  const std::string bytes(12, 'x');
  const Codec& fp32 = **FindCodec(v1::ENCODING_FP32);
  EXPECT_EQ(Gradient::Open(fp32, {bytes}, 4).status().message(), "has 3 elements, want 4");
  EXPECT_EQ(Gradient::Open(fp32, {absl::string_view(bytes).substr(1)}, 3).status().message(),
            "has 11 bytes, want a multiple of 4");
  EXPECT_EQ(Gradient::Open(**FindCodec(v1::ENCODING_BF16), {bytes}, 4).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(GradientTest, NothingHasNoBlocks) {
  EXPECT_TRUE(Gradient().empty());
  EXPECT_TRUE(Gather(Gradient()).empty());
  EXPECT_TRUE(Gradient().AllFinite());
}

TEST(GradientTest, FindsTheOneElementThatIsNotFinite) {
  for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                    std::numeric_limits<float>::quiet_NaN()}) {
    for (size_t at : {0u, 31u, 4096u, 5000u}) {
      std::vector<float> values = Counting(5001);
      EXPECT_TRUE(Gradient(values).AllFinite());
      values[at] = bad;
      EXPECT_FALSE(Gradient(values).AllFinite()) << bad << " at " << at;
      // Cuts within an element, twice.
      const absl::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
      for (size_t cut : {1u, 2u, 126u, 127u, 16385u, 20003u}) {
        const std::vector<absl::string_view> pieces = {bytes.substr(0, cut), bytes.substr(cut, 1),
                                                       bytes.substr(cut + 1)};
        const Gradient gradient = *Gradient::Open(**FindCodec(v1::ENCODING_FP32), pieces, values.size());
        EXPECT_FALSE(gradient.AllFinite()) << bad << " at " << at << ", cut at " << cut;
        EXPECT_EQ(Gather(gradient).size(), values.size());
      }
    }
  }
}

}  // namespace
}  // namespace ballast
