// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

// Rounds floats to 16-bit patterns, to nearest with ties to even, and converts back. NaN stays NaN. A GPU uses its
// own instructions, which give the same bits except for NaNs, in a fraction of the time.
namespace ballast {

__host__ __device__ inline uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// bfloat16: the upper half of a float.
__host__ __device__ inline uint16_t ToBf16(float x) {
#ifdef __CUDA_ARCH__
  uint16_t half;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return half;
#else
  const uint32_t bits = BitsOf(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

// IEEE half: 5 bits of exponent, 10 of fraction. Large values overflow to infinity; small ones become subnormal or 0.
__host__ __device__ inline uint16_t ToFp16(float x) {
#ifdef __CUDA_ARCH__
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return half;
#else
  const uint32_t bits = BitsOf(x);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  // 65520 and above round to infinity.
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
  if (magnitude >= 0x38800000u) {
    // From 2^-14 on: changes the exponent's bias from 127 to 15 and rounds 13 bits of the fraction away.
    const uint32_t rebiased = magnitude - (112u << 23);
    return sign | static_cast<uint16_t>((rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13);
  }
  // A subnormal is a multiple of 2^-24.
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 102u) return sign;
  const uint32_t fraction = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t shift = 126u - exponent;
  const uint32_t whole = fraction >> shift;
  const uint32_t rest = fraction & ((1u << shift) - 1u);
  const uint32_t half = 1u << (shift - 1u);
  return sign | static_cast<uint16_t>(whole + (rest > half || (rest == half && (whole & 1u)) ? 1u : 0u));
#endif
}

__host__ __device__ inline float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

__host__ __device__ inline float FromBf16(uint16_t x) { return FloatOf(static_cast<uint32_t>(x) << 16); }

__host__ __device__ inline float FromFp16(uint16_t x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
#else
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000u) << 16;
  const uint32_t exponent = (x >> 10) & 0x1fu;
  const uint32_t fraction = x & 0x3ffu;
  if (exponent == 0x1fu) return FloatOf(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) return FloatOf(sign | ((exponent + 112u) << 23) | (fraction << 13));
  // A subnormal or 0: a multiple of 2^-24, exact in fp32.
  const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-8f;
  return sign != 0 ? -magnitude : magnitude;
#endif
}

}  // namespace ballast
