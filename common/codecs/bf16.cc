// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstring>

#include "common/codecs/codec.h"
#include "common/codecs/half_codec.h"
#include "common/simd/instruction_set.h"

namespace ballast {
namespace {

// Adds half of the truncated part, less one bit if the result is then even. A NaN is made quiet, because the
// remaining part of its payload could be 0, which means infinity.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void EncodeBody(const float* __restrict values, size_t n, char* __restrict half) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40;
    const uint16_t upper = (bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded;
    std::memcpy(half + i * 2, &upper, 2);
  }
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline void DecodeBody(const char* __restrict half, size_t n, float* __restrict values) {
  for (size_t i = 0; i < n; ++i) {
    uint16_t upper;
    std::memcpy(&upper, half + i * 2, 2);
    values[i] = std::bit_cast<float>(uint32_t{upper} << 16);
  }
}

void Encode(const float* values, size_t n, char* half) {
  RunLoop([=]() ABSL_ATTRIBUTE_ALWAYS_INLINE { EncodeBody(values, n, half); });
}

void Decode(const char* half, size_t n, float* values) {
  RunLoop([=]() ABSL_ATTRIBUTE_ALWAYS_INLINE { DecodeBody(half, n, values); });
}

}  // namespace

// The upper half of a binary32, rounded to nearest even. NaN stays NaN.
std::unique_ptr<const Codec> MakeBf16(const v1::Codec&) {
  return std::make_unique<HalfCodec>(v1::ENCODING_BF16, "bf16", Encode, Decode);
}

}  // namespace ballast
