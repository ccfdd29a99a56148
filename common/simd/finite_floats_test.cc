// SPDX-License-Identifier: Apache-2.0
#include "common/simd/finite_floats.h"

#include <cstring>
#include <limits>
#include <vector>

#include "common/simd/instruction_set.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(FiniteFloatsTest, FindsTheOneThatIsNot) {
  using Limits = std::numeric_limits<float>;
  constexpr size_t kCount = 100;
  std::vector<char> bytes(kCount * sizeof(float) + 1);
  for (const InstructionSet set : AvailableInstructionSets()) {
    const ScopedInstructionSet scope(set);
    for (const size_t shift : {0, 1}) {
      const std::vector<float> largest(kCount, -Limits::max());
      std::memcpy(&bytes[shift], largest.data(), kCount * sizeof(float));
      EXPECT_TRUE(AreFinite(&bytes[shift], kCount));
      for (const float bad : {Limits::quiet_NaN(), -Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
        for (size_t at = 0; at < kCount; ++at) {
          std::memcpy(&bytes[shift + at * sizeof(float)], &bad, sizeof(float));
          EXPECT_FALSE(AreFinite(&bytes[shift], kCount)) << bad << " at " << at << " with " << NameOf(set);
          EXPECT_TRUE(AreFinite(&bytes[shift], at));
          std::memcpy(&bytes[shift + at * sizeof(float)], largest.data(), sizeof(float));
        }
      }
    }
  }
  EXPECT_TRUE(AreFinite(nullptr, 0));
}

TEST(FiniteFloatsTest, LooksAtAlignedFloatsThatAreThereAsAWhole) {
  constexpr float kNotFinite = std::numeric_limits<float>::infinity();
  const float floats[] = {kNotFinite, 1, 2, kNotFinite};
  const absl::string_view bytes(reinterpret_cast<const char*>(floats), sizeof(floats));
  for (size_t begin = 0; begin < bytes.size(); ++begin) {
    for (size_t end = begin; end <= bytes.size(); ++end) {
      const bool has_first = begin == 0 && end >= 4, has_last = begin <= 12 && end == 16;
      EXPECT_EQ(AlignedFloatsAreFinite(bytes.substr(begin, end - begin)), !has_first && !has_last)
          << begin << " to " << end;
    }
  }
  EXPECT_TRUE(AlignedFloatsAreFinite({}));
}

}  // namespace
}  // namespace ballast
