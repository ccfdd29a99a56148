// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace ballast {

// A pseudorandom permutation of 0 to n - 1 in constant memory: a balanced Feistel network over the next power of 4,
// with cycle walking until the result is below n (J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains",
// 2002). The same n, seed and epoch give the same permutation on every machine. Thread safety: immutable.
class Permutation {
 public:
  // n must be at least 1.
  Permutation(uint64_t n, uint64_t seed, uint32_t epoch);

  // Returns the element at `position`, which must be below n.
  uint64_t operator()(uint64_t position) const;

 private:
  uint64_t Encrypt(uint64_t block) const;

  uint64_t n_;
  int half_bits_;
  uint64_t half_mask_;
  std::array<uint64_t, 8> round_keys_;
};

// Returns the sorted indices of the examples, out of n, that a test share holds out: share * n, rounded, but at least 1
// and at most n - 1. Empty if the share is 0 or n is below 2.
std::vector<uint64_t> HeldOutExamples(uint64_t n, double share, uint64_t seed);

}  // namespace ballast
