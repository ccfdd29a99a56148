// SPDX-License-Identifier: Apache-2.0
#include "server/policies/slice_policy.h"

#include "absl/strings/str_cat.h"
#include "common/job/policy_config.h"
#include "server/policies/async_policy.h"
#include "server/policies/bounded_policy.h"
#include "server/policies/sync_policy.h"

namespace ballast {
namespace {

using Maker = std::unique_ptr<SlicePolicy> (*)(const v1::ConsistencyPolicy&, uint32_t workers);

// All policies, one per line.
constexpr struct {
  v1::ConsistencyPolicy::KindCase kind;
  Maker make;
} kPolicies[] = {
    {v1::ConsistencyPolicy::kSync, MakeSyncPolicy},
    {v1::ConsistencyPolicy::kAsync, MakeAsyncPolicy},
    {v1::ConsistencyPolicy::kBounded, MakeBoundedPolicy},
    {v1::ConsistencyPolicy::kLocalSgd, MakeLocalSgdPolicy},
};

}  // namespace

absl::StatusOr<std::unique_ptr<SlicePolicy>> MakeSlicePolicy(const v1::ConsistencyPolicy& config, uint32_t workers) {
  if (absl::Status status = ValidatePolicy(config, workers); !status.ok()) return status;
  for (const auto& entry : kPolicies) {
    if (entry.kind == config.kind_case()) return entry.make(config, workers);
  }
  return absl::InternalError(absl::StrCat("policy: ", PolicyMode(config), " is not in the table of policies"));
}

}  // namespace ballast
