// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace ballast {

// Damages inputs like real files and messages: flipped bits, edge values, cuts, repeats, splices of two.
// The same seed gives the same sequence on every machine. Thread safety: none.
class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  // Returns one of the seeds (at least one) with 1 to 4 changes; at most kMaxBytes.
  std::string Next(const std::vector<std::string>& seeds);

  static constexpr size_t kMaxBytes = 64 << 10;

 private:
  size_t Below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }
  void Change(std::string& text, const std::vector<std::string>& seeds);

  std::mt19937_64 random_;
};

}  // namespace ballast
