// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/random/zipf_distribution.h"

namespace ballast {

// Draws batches of ids from a table's rows, 0 to `rows` - 1: uniformly, or so that id k has a probability proportional
// to (1 + k)^-exponent. Equal arguments draw equal batches. Thread safety: confined to one thread.
class RowSampler {
 public:
  // `exponent`: 0 for uniform, otherwise above 1.
  RowSampler(uint64_t rows, double exponent, uint64_t seed);

  // Draws until `count` ids are distinct, and returns these in the order in which they first appeared. `count` is at
  // most `rows`, and much less if the distribution is skewed, because rare ids are long in coming.
  std::vector<uint64_t> Draw(size_t count);

 private:
  const bool uniform_;
  std::mt19937_64 random_;
  std::uniform_int_distribution<uint64_t> flat_;
  absl::zipf_distribution<uint64_t> skewed_;
};

// Hashes of ids of table 1, ascending: a batch as it reaches the server's table.
std::vector<uint64_t> SortedHashes(std::vector<uint64_t> ids);

}  // namespace ballast
