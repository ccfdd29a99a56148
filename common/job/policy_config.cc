// SPDX-License-Identifier: Apache-2.0
#include "common/job/policy_config.h"

#include "absl/strings/str_cat.h"
#include "common/job/limits.h"

namespace ballast {

absl::Status ValidatePolicy(const v1::ConsistencyPolicy& policy, uint32_t workers) {
  ValidationErrors errors;
  CheckLimits(policy, "policy", errors);
  errors.Check(workers == 0 || policy.sync().quorum() <= workers, "policy.sync.quorum", policy.sync().quorum(),
               absl::StrCat("1 to the number of workers, ", workers, ", or 0 for all of them"));
  return errors.First();
}

}  // namespace ballast
