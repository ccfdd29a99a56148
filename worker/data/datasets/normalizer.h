// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "absl/types/span.h"
#include "ballast/v1/job.pb.h"

namespace ballast {

// Computes (x - mean) / stddev in double and rounds once, so that all readers give the same bits for the same number.
// Thread safety: immutable.
class Normalizer {
 public:
  explicit Normalizer(const v1::Normalization& normalization)
      : mean_(normalization.mean()), stddev_(normalization.has_stddev() ? normalization.stddev() : 1) {
    for (int i = 0; i < 256; ++i) table_[i] = (*this)(i);
  }

  float operator()(double x) const { return static_cast<float>((x - mean_) / stddev_); }

  // Same as operator(), from a lookup table.
  float OfByte(uint8_t x) const { return table_[x]; }

  void Apply(absl::Span<float> values) const {
    for (float& value : values) value = (*this)(value);
  }

 private:
  double mean_;
  double stddev_;
  std::array<float, 256> table_;
};

}  // namespace ballast
