// SPDX-License-Identifier: Apache-2.0
// Random numbers for initial values. The function of each is part of the format of saved jobs: it never changes.
#pragma once

#include <cstdint>

#include "absl/base/attributes.h"
#include "absl/strings/string_view.h"

namespace ballast {

// SplitMix64's output function (Steele, Lea and Flood, 2014), used as a hash of a counter. A bijection.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline uint64_t SplitMix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The start of a parameter's numbers.
inline uint64_t StreamOf(uint64_t seed, absl::string_view name) {
  uint64_t stream = SplitMix64(seed);
  for (unsigned char c : name) stream = SplitMix64(stream ^ c);
  return stream;
}

}  // namespace ballast
