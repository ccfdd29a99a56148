// SPDX-License-Identifier: Apache-2.0
#include "server/policies/slice_policy.h"

#include "absl/strings/str_cat.h"
#include "common/job/job_config.h"
#include "common/job/kind_names.h"

namespace ballast {

// Each is defined in the file of its name. Its message of the configuration is set and valid.
using MakePolicy = std::unique_ptr<SlicePolicy>(const v1::ConsistencyPolicy&, uint32_t workers);
MakePolicy MakeSyncPolicy, MakeAsyncPolicy, MakeBoundedPolicy, MakeLocalSgdPolicy;

namespace {

constexpr struct {
  v1::ConsistencyPolicy::KindCase kind;
  MakePolicy* make;
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
  return absl::InternalError(absl::StrCat("policy: ", KindName(config), " is not in the table of policies"));
}

}  // namespace ballast
