// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "ballast/v1/parameter_service.pb.h"

namespace ballast {

// How often a quantity fell between which powers of two: ballast.v1.Histogram's buckets. An Add is two additions and a
// load of atomics, with no lock. A reading taken while others add may lack some of what they add, and its parts may
// differ by that much. Thread safety: all methods may be called from any thread.
class Histogram {
 public:
  void Add(uint64_t value);

  v1::Histogram ToProto() const;

 private:
  // Zero, and one for each bit length.
  std::array<std::atomic<uint64_t>, 65> buckets_ = {};
  // Modulo 2^64.
  std::atomic<uint64_t> sum_{0};
  std::atomic<uint64_t> max_{0};
};

// Adds what was counted in `from` to `into`.
void Merge(const v1::Histogram& from, v1::Histogram& into);

}  // namespace ballast
