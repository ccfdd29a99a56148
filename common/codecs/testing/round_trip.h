// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/codecs/codec.h"
#include "gtest/gtest.h"

namespace ballast {

// Payloads and elements for tests of codecs, with the checks that hold for every codec.
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// Around the sizes of blocks.
inline constexpr size_t kSizes[] = {1, 7, 255, 256, 257, 1023, 1024, 1025, 4097, 100003};

inline const Codec& Find(v1::Encoding encoding) { return **FindCodec(encoding); }

inline std::vector<float> RandomValues(size_t n, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.01f);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// Largest magnitude in the block of element i.
inline double LargestOfBlock(absl::Span<const float> values, size_t i, size_t block) {
  double largest = 0;
  for (float value : values.subspan(i / block * block, block)) largest = std::max(largest, std::abs(double{value}));
  return largest;
}

inline std::string Encoded(const Codec& codec, absl::Span<const float> values, uint64_t seed = 7) {
  // Unaligned by one byte, like a message's memory; the last byte detects writes past the end.
  std::string memory(codec.EncodedBytes(values.size()) + 2, '\x5a');
  EXPECT_EQ(codec.Encode(values, seed, &memory[1]), memory.size() - 2);
  EXPECT_EQ(memory.back(), '\x5a');
  return memory.substr(1, memory.size() - 2);
}

inline absl::StatusOr<std::vector<float>> Decoded(const Codec& codec, Codec::Pieces pieces, size_t elements) {
  std::vector<float> values(elements, -77.0f);
  if (absl::Status status = codec.Decode(pieces, absl::MakeSpan(values)); !status.ok()) {
    EXPECT_EQ(values, std::vector<float>(elements, -77.0f)) << "written before it was refused";
    return status;
  }
  return values;
}

inline absl::StatusOr<std::vector<float>> Decoded(const Codec& codec, absl::string_view payload, size_t elements) {
  return Decoded(codec, absl::MakeConstSpan(&payload, 1), elements);
}

inline std::vector<float> RoundTrip(const Codec& codec, absl::Span<const float> values, uint64_t seed = 7) {
  auto decoded = Decoded(codec, Encoded(codec, values, seed), values.size());
  EXPECT_TRUE(decoded.ok()) << decoded.status();
  return decoded.ok() ? *decoded : std::vector<float>(values.size(), -77.0f);
}

inline std::vector<uint32_t> Bits(absl::Span<const float> values) {
  std::vector<uint32_t> bits;
  for (float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

inline absl::string_view RefusalOf(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return status.message();
}

}  // namespace ballast
