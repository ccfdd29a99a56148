// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "ballast/v1/parameter_service.pb.h"

namespace ballast {

// Counts how often a quantity fell between successive powers of two: ballast.v1.Histogram's buckets. An Add is two
// atomic additions and one atomic load, without a lock. A reading during concurrent Adds may lack some of them, and
// its parts may differ by that much. Thread safety: all methods may be called from any thread.
class Histogram {
 public:
  void Add(uint64_t value);

  v1::Histogram ToProto() const;

 private:
  // One bucket for zero and one for each bit length.
  std::array<std::atomic<uint64_t>, 65> buckets_ = {};
  // Modulo 2^64.
  std::atomic<uint64_t> sum_{0};
  std::atomic<uint64_t> max_{0};
};

// Adds the counts of `from` to `into`.
void Merge(const v1::Histogram& from, v1::Histogram& into);

}  // namespace ballast
