// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ballast {

class FuzzInput;

// One parser under fuzzing: each *_fuzz.cc defines both functions. libFuzzer calls the first with --config=fuzz,
// mutation_test.cc otherwise.
void FuzzOne(FuzzInput input);
// Initial inputs that the parser accepts.
std::vector<std::string> FuzzSeeds();

// Reports a finding if `holds` is false, in every build.
inline void Require(bool holds, absl::string_view what) {
  if (holds) return;
  std::cerr << "requirement violated: " << what << std::endl;
  std::abort();
}

// Takes an input apart from its beginning: choices first, the parser's own text last. After its end everything is 0.
// Thread safety: none.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const uint8_t byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }
  // Little-endian.
  uint64_t Number(int bytes) {
    uint64_t number = 0;
    for (int i = 0; i < bytes; ++i) number |= uint64_t{Byte()} << (8 * i);
    return number;
  }
  absl::string_view Take(size_t bytes) {
    const absl::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  absl::string_view Rest() const { return rest_; }

 private:
  absl::string_view rest_;
};

// Cuts a text into pieces of `bytes` bytes, like a message from a network; 0 leaves it whole.
inline std::vector<absl::string_view> Cut(absl::string_view text, size_t bytes) {
  if (bytes == 0) return {text};
  std::vector<absl::string_view> pieces;
  for (size_t at = 0; at < text.size(); at += bytes) pieces.push_back(text.substr(at, bytes));
  return pieces;
}

}  // namespace ballast
