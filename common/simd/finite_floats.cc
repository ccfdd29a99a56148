// SPDX-License-Identifier: Apache-2.0
#include "common/simd/finite_floats.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/base/attributes.h"
#include "common/simd/instruction_set.h"

namespace ballast {
namespace {

// Finds the largest magnitude as bits; infinity and NaN have the largest of all.
struct LargestLoop {
  const char* floats;
  size_t count;
  int32_t* largest;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    int32_t most = 0;
    for (size_t i = 0; i < count; ++i) {
      int32_t bits;
      std::memcpy(&bits, floats + i * sizeof(bits), sizeof(bits));
      most = std::max(most, bits & 0x7fffffff);
    }
    *largest = most;
  }
};

}  // namespace

bool AreFinite(const char* floats, size_t count) {
  constexpr int32_t kInfinity = 0x7f800000;
  int32_t largest = 0;
  RunLoop(LargestLoop{floats, count, &largest});
  return largest < kInfinity;
}

bool AlignedFloatsAreFinite(absl::string_view bytes) {
  const size_t ahead = -reinterpret_cast<uintptr_t>(bytes.data()) % alignof(float);
  return bytes.size() < ahead || AreFinite(bytes.data() + ahead, (bytes.size() - ahead) / sizeof(float));
}

}  // namespace ballast
