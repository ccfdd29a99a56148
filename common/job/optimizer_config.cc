// SPDX-License-Identifier: Apache-2.0
#include "common/job/optimizer_config.h"

#include "common/job/limits.h"

namespace ballast {

absl::Status ValidateOptimizer(const v1::Optimizer& optimizer) {
  ValidationErrors errors;
  CheckLimits(optimizer, "optimizer", errors);
  const v1::Schedule& schedule = optimizer.schedule();
  errors.Check(
      !schedule.total_from_job() || schedule.has_polynomial() || schedule.has_cosine() || schedule.has_one_cycle(),
      "optimizer.schedule.total_from_job", "true", "it only with polynomial, cosine or one_cycle");
  return errors.First();
}

}  // namespace ballast
