// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace ballast {

// A pseudorandom order of 0 to n - 1 in constant memory: a balanced Feistel network over the next power of 4, and a
// walk along its cycles until it lands below n (J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains",
// 2002). The same n, seed and epoch give the same order on every machine.
//
// Thread safety: immutable.
class Permutation {
 public:
  // n is at least 1.
  Permutation(uint64_t n, uint64_t seed, uint32_t epoch);

  // The element at a position below n.
  uint64_t operator()(uint64_t position) const;

 private:
  uint64_t Encrypt(uint64_t block) const;

  uint64_t n_;
  int half_bits_;
  uint64_t half_mask_;
  std::array<uint64_t, 8> round_keys_;
};

}  // namespace ballast
