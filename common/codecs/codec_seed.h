// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>

namespace ballast {

// SplitMix64's output function (Steele et al., 2014): decorrelates neighboring numbers.
inline uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Derives a seed for Codec::Encode from the numbers that identify the payload: worker, step, tensor and slice of a
// gradient; tensor, slice and version of values. The same on every machine; depends on the order of the numbers.
inline uint64_t CodecSeed(std::initializer_list<uint64_t> numbers) {
  uint64_t seed = numbers.size();
  for (uint64_t number : numbers) seed = MixBits(seed ^ number);
  return seed;
}

}  // namespace ballast
