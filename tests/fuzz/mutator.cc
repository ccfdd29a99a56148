// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace ballast {
namespace {

// Edge values of lengths, counts and offsets.
constexpr std::array<uint64_t, 10> kEdges = {
    0, 1, 0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff, uint64_t{1} << 32, 0x7fffffffffffffff, 0xffffffffffffffff};

constexpr std::array<const char*, 12> kWords = {
    "-1", "0", "99999999999999999999", "1e999", "nan", "\n", "\"", "{}{", "]", "\\", ",", "\xff\xfe"};

}  // namespace

std::string Mutator::Next(const std::vector<std::string>& seeds) {
  std::string text = seeds[Below(seeds.size())];
  for (size_t changes = 1 + Below(4); changes > 0; --changes) Change(text, seeds);
  text.resize(std::min(text.size(), kMaxBytes));
  return text;
}

void Mutator::Change(std::string& text, const std::vector<std::string>& seeds) {
  const size_t at = Below(text.size());
  const size_t length = std::min(text.size() - at, 1 + Below(32));
  switch (Below(9)) {
    case 0:
      if (!text.empty()) text[at] ^= static_cast<char>(1 << Below(8));
      return;
    case 1:
      if (!text.empty()) text[at] = static_cast<char>(random_());
      return;
    case 2:
      text.resize(at);
      return;
    case 3:
      text.erase(at, length);
      return;
    case 4:
      text.insert(at, text.substr(at, length));
      return;
    case 5: {
      const uint64_t edge = kEdges[Below(kEdges.size())];
      const size_t bytes = std::min(text.size() - at, size_t{1} << Below(4));
      std::memcpy(text.data() + at, &edge, bytes);
      return;
    }
    case 6:
      text.insert(at, kWords[Below(kWords.size())]);
      return;
    case 7: {
      // Joins the beginning of this one with the end of another.
      const std::string& other = seeds[Below(seeds.size())];
      text.resize(at);
      text += other.substr(Below(other.size()));
      return;
    }
    default:
      for (size_t i = 0; i < length; ++i) text.insert(text.begin() + at, static_cast<char>(random_()));
  }
}

}  // namespace ballast
