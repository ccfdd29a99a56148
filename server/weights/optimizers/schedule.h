// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "ballast/v1/tensor.pb.h"

namespace ballast {

// The learning rate of each update, by tensor.proto's Schedule. Knows nothing of slices or optimizers.
// Thread safety: immutable.
class Schedule {
 public:
  // `config` is valid. `rate` is the optimizer's own learning rate.
  Schedule(const v1::Schedule& config, double rate) : config_(config), rate_(rate) {}

  // The rate of update t, from 0, at that position in the job, PushHeader.schedule_position, if one is known. Takes
  // well under a microsecond. A rate of the polynomial, cosine or one-cycle schedule is as good as the C library's cos
  // and pow, whose last bits may differ between machines.
  double LearningRate(uint64_t t, std::optional<double> position = std::nullopt) const;

 private:
  // Without the warm-up; 1 is the optimizer's own rate.
  double Factor(uint64_t t, std::optional<double> position) const;

  const v1::Schedule config_;
  const double rate_;
};

}  // namespace ballast
