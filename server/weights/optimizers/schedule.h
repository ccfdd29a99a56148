// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Owns the learning-rate schedule of tensor.proto's Schedule. Deliberately knows neither slices nor optimizers.
// Thread safety: immutable.
class Schedule {
 public:
  // `config` must be valid. `rate` is the optimizer's own learning rate.
  Schedule(const v1::Schedule& config, double rate);

  // The learning rate of update t, from 0, at that position in the job (PushHeader.schedule_position), if it is
  // known. Takes well under a microsecond. The polynomial, cosine and one-cycle schedules use the C library's cos and
  // pow, so their last bits may differ between machines.
  double LearningRate(uint64_t t, std::optional<double> position = std::nullopt) const;

 private:
  // The factor of the optimizer's own rate, without the warm-up.
  double Factor(uint64_t t, std::optional<double> position) const;

  const v1::Schedule config_;
  const double rate_;
};

// base^exponent by squaring. It only multiplies, so the bits are the same with every C library.
constexpr double IntegerPower(double base, uint64_t exponent) {
  double power = 1;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if (exponent & 1) power *= base;
  }
  return power;
}

// The number that a job file means by a constant: 0.9 for the float nearest to it, of which a double would keep
// 0.89999998. So a constant that is written and one that is left out give the same bits.
double DecimalOf(float constant);

}  // namespace ballast
