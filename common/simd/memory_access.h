// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>

#include "absl/base/attributes.h"

namespace ballast {

// Copies the bytes of `count` floats, which must not overlap; `from` need not be aligned. Without a call for a short
// row: for 16 floats that call takes longer than the copy.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void CopyFloats(const char* from, size_t count, float* to) {
  constexpr size_t kBlock = 4, kShort = 64;
  if (count > kShort) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) std::memcpy(to + i, from + i * sizeof(float), kBlock * sizeof(float));
  for (; i < count; ++i) std::memcpy(to + i, from + i * sizeof(float), sizeof(float));
}
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void CopyFloats(const float* from, size_t count, float* to) {
  CopyFloats(reinterpret_cast<const char*>(from), count, to);
}

// Prefetches the cache line of an address for this core alone, so that a write to it need not ask the others.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void PrefetchToWrite(const void* address) {
#if defined(__x86_64__)
  // Compilers emit it only for processors that are known to have it; the others take it for a no-op.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));
#else
  __builtin_prefetch(address, 1);
#endif
}

}  // namespace ballast
