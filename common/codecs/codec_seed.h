// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>

namespace ballast {

// SplitMix64's output function (Steele et al., 2014): neighbouring numbers come out with nothing in common.
inline uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A seed for Codec::Encode out of what names the payload: the worker, the step, the tensor and the slice of a gradient;
// the tensor, the slice and the version of values. The same on every machine, other for each order of the numbers.
inline uint64_t CodecSeed(std::initializer_list<uint64_t> numbers) {
  uint64_t seed = numbers.size();
  for (uint64_t number : numbers) seed = MixBits(seed ^ number);
  return seed;
}

}  // namespace ballast
