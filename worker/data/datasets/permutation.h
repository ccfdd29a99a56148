// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

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

}  // namespace ballast
