// SPDX-License-Identifier: Apache-2.0
#include "common/simd/large_copy.h"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr size_t kLarge = kStreamedBytes + 777;
constexpr size_t kSizes[] = {0, 1, 3, 4, 63, 64, 65, 5000, 100001, kStreamedBytes - 1, kStreamedBytes, kLarge};
constexpr char kUntouched = '#';

// Bytes of which no four in a row are a float that is not finite.
std::string Pattern(size_t bytes) {
  std::string pattern(bytes, ' ');
  for (size_t i = 0; i < bytes; ++i) pattern[i] = static_cast<char>(i * 31 % 127);
  return pattern;
}

class LargeCopyTest : public testing::Test {
 protected:
  LargeCopyTest() : pattern_(Pattern(kLarge + 64)), to_(kLarge + 256, kUntouched) {
    line_ = &to_[64 - reinterpret_cast<uintptr_t>(to_.data()) % 64];
  }

  // Copies `bytes` to `ahead` bytes behind the beginning of a line, and checks what is where.
  template <typename Copy>
  void Check(size_t bytes, size_t from_ahead, size_t ahead, Copy copy) {
    const absl::string_view from = absl::string_view(pattern_).substr(from_ahead, bytes);
    copy(from, line_ + ahead);
    EXPECT_EQ(absl::string_view(line_ + ahead, bytes), from) << bytes << " bytes to " << ahead;
    EXPECT_EQ(line_[ahead - 1], kUntouched);
    EXPECT_EQ(line_[ahead + bytes], kUntouched);
    std::memset(line_ + ahead, kUntouched, bytes);
  }

  const std::string pattern_;
  std::vector<char> to_;
  char* line_;
};

TEST_F(LargeCopyTest, CopiesAllAndNothingElse) {
  for (const size_t bytes : kSizes) {
    for (const size_t ahead : {1, 4, 17, 63, 64}) {
      for (const size_t from_ahead : {0, 3, 16}) {
        Check(bytes, from_ahead, ahead, CopyLarge);
        Check(bytes, from_ahead, ahead,
              [](absl::string_view from, char* to) { EXPECT_TRUE(CopyLargeAndCheck(from, to)); });
        Check(bytes, from_ahead, ahead,
              [](absl::string_view from, char* to) { EXPECT_TRUE(CopyLargeAndCheck(from, to, CopyTo::kCaches)); });
      }
    }
  }
}

// There, memcpy may be slow.
TEST_F(LargeCopyTest, CopiesToJustAheadOfTheSourceWithinAPage) {
  constexpr uintptr_t kPage = 4096;
  for (const size_t bytes : {4095, 4096, 5000, 100001}) {
    for (const uintptr_t distance : {1, 16, 31, 32}) {
      const uintptr_t from = reinterpret_cast<uintptr_t>(pattern_.data()), line = reinterpret_cast<uintptr_t>(line_);
      const size_t ahead = 1 + (from + distance - 1 - line) % kPage;
      ASSERT_EQ((line + ahead - from) % kPage, distance);
      Check(bytes, 0, ahead, CopyLarge);
      Check(bytes, 0, ahead, [](absl::string_view from, char* to) { EXPECT_TRUE(CopyLargeAndCheck(from, to)); });
    }
  }
}

TEST_F(LargeCopyTest, FindsAFloatThatIsNotFiniteWhereverItIs) {
  const float infinity = -std::numeric_limits<float>::infinity();
  for (const size_t bytes : {size_t{12}, size_t{64}, size_t{20000}, kLarge}) {
    for (const size_t ahead : {4, 16, 62, 64}) {
      std::string from = pattern_.substr(0, bytes);
      const size_t first = -ahead % sizeof(float), last = first + (bytes - first) / sizeof(float) * sizeof(float) - 4;
      for (const size_t at : {first, first + 4, last / 8 * 4 + first % 4, last - 4, last}) {
        std::memcpy(&from[at], &infinity, sizeof(infinity));
        for (const CopyTo where : {CopyTo::kMemory, CopyTo::kCaches}) {
          EXPECT_FALSE(CopyLargeAndCheck(from, line_ + ahead, where)) << at << " of " << bytes << " to " << ahead;
        }
        std::memcpy(&from[at], &pattern_[at], sizeof(infinity));
      }
      EXPECT_TRUE(CopyLargeAndCheck(from, line_ + ahead)) << bytes << " to " << ahead;
    }
  }
}

}  // namespace
}  // namespace ballast
