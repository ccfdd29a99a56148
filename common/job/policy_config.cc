// SPDX-License-Identifier: Apache-2.0
#include "common/job/policy_config.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

constexpr uint32_t kMaxStaleness = 1000000;
constexpr uint32_t kMaxLocalSteps = 1000000;

template <typename Got>
absl::Status Refuse(absl::string_view field, Got got, absl::string_view want) {
  return absl::InvalidArgumentError(absl::StrCat("policy ", field, ": got ", got, ", want ", want));
}

}  // namespace

absl::string_view PolicyMode(const v1::ConsistencyPolicy& policy) {
  switch (policy.kind_case()) {
    case v1::ConsistencyPolicy::kSync:
      return "sync";
    case v1::ConsistencyPolicy::kAsync:
      return "async";
    case v1::ConsistencyPolicy::kBounded:
      return "bounded";
    case v1::ConsistencyPolicy::kLocalSgd:
      return "local_sgd";
    case v1::ConsistencyPolicy::KIND_NOT_SET:
      break;
  }
  return "";
}

absl::Status ValidatePolicy(const v1::ConsistencyPolicy& policy, uint32_t workers) {
  switch (policy.kind_case()) {
    case v1::ConsistencyPolicy::kSync:
      if (workers == 0 || policy.sync().quorum() <= workers) return absl::OkStatus();
      return Refuse("sync quorum", policy.sync().quorum(),
                    absl::StrCat("1 to the number of workers, ", workers, ", or 0 for all of them"));
    case v1::ConsistencyPolicy::kAsync: {
      const float lambda = policy.async().delay_compensation();
      if (std::isfinite(lambda) && lambda >= 0) return absl::OkStatus();
      return Refuse("async delay_compensation", lambda, "a finite number, at least 0");
    }
    case v1::ConsistencyPolicy::kBounded:
      if (policy.bounded().staleness() <= kMaxStaleness) return absl::OkStatus();
      return Refuse("bounded staleness", policy.bounded().staleness(), absl::StrCat("0 to ", kMaxStaleness));
    case v1::ConsistencyPolicy::kLocalSgd: {
      const v1::ConsistencyPolicy::LocalSgd& local = policy.local_sgd();
      if (local.local_steps() < 1 || local.local_steps() > kMaxLocalSteps) {
        return Refuse("local_sgd local_steps", local.local_steps(), absl::StrCat("1 to ", kMaxLocalSteps));
      }
      if (std::isfinite(local.learning_rate()) && local.learning_rate() > 0) return absl::OkStatus();
      return Refuse("local_sgd learning_rate", local.learning_rate(), "a finite number above 0");
    }
    case v1::ConsistencyPolicy::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat("policy: got none, want ", kPolicyModes));
}

}  // namespace ballast
