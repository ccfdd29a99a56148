// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstring>

#include "common/codecs/codec.h"
#include "common/codecs/half_codec.h"
#include "common/simd/instruction_set.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ballast {
namespace {

uint16_t ToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  // A NaN is made quiet, as the processor does.
  if (magnitude > 0x7f800000) return sign | 0x7e00 | ((magnitude >> 13) & 0x3ff);
  // 65520 and above round to 65536, which is infinity.
  if (magnitude >= 0x477ff000) return sign | 0x7c00;
  // Below 2^-14 a half is a multiple of 2^-24, the last place of a float in [0.5, 1): the addition rounds.
  if (magnitude < 0x38800000) {
    return sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000);
  }
  // Changes the exponent's bias from 127 to 15 and adds half of the truncated part, less one bit if the result is
  // then even. A carry correctly goes into the exponent.
  return sign | ((magnitude - ((127 - 15) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13);
}

float FromHalf(uint16_t half) {
  const uint32_t sign = uint32_t{half} << 16 & 0x80000000, exponent = half >> 10 & 0x1f, mantissa = half & 0x3ff;
  if (exponent == 0) {
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f));
  }
  if (exponent == 31) {
    return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13 | (mantissa != 0 ? 0x400000 : 0));
  }
  return std::bit_cast<float>(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

void EncodePortable(const float* values, size_t n, char* half) {
  for (size_t i = 0; i < n; ++i) {
    const uint16_t one = ToHalf(values[i]);
    std::memcpy(half + i * 2, &one, 2);
  }
}

void DecodePortable(const char* half, size_t n, float* values) {
  for (size_t i = 0; i < n; ++i) {
    uint16_t one;
    std::memcpy(&one, half + i * 2, 2);
    values[i] = FromHalf(one);
  }
}

#if defined(__x86_64__)
[[BALLAST_AVX2]] void EncodeVector(const float* values, size_t n, char* half) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i eight = _mm256_cvtps_ph(_mm256_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(half + i * 2), eight);
  }
  EncodePortable(values + i, n - i, half + i * 2);
}

[[BALLAST_AVX2]] void DecodeVector(const char* half, size_t n, float* values) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(half + i * 2));
    _mm256_storeu_ps(values + i, _mm256_cvtph_ps(eight));
  }
  DecodePortable(half + i * 2, n - i, values + i);
}
#else
constexpr auto EncodeVector = EncodePortable;
constexpr auto DecodeVector = DecodePortable;
#endif

void Encode(const float* values, size_t n, char* half) {
  (ChosenInstructionSet() == InstructionSet::kPortable ? EncodePortable : EncodeVector)(values, n, half);
}

void Decode(const char* half, size_t n, float* values) {
  (ChosenInstructionSet() == InstructionSet::kPortable ? DecodePortable : DecodeVector)(half, n, values);
}

}  // namespace

// IEEE 754 binary16, rounded to nearest even. What is beyond its range becomes infinity; NaN stays NaN.
std::unique_ptr<const Codec> MakeFp16(const v1::Codec&) {
  return std::make_unique<HalfCodec>(v1::ENCODING_FP16, "fp16", Encode, Decode);
}

}  // namespace ballast
