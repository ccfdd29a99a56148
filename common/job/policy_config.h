// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// For messages: what a policy may be.
inline constexpr absl::string_view kPolicyModes = "sync, async, bounded or local_sgd";

// "sync", "async", "bounded", "local_sgd"; empty where no kind is set.
absl::string_view PolicyMode(const v1::ConsistencyPolicy& policy);

// Whether the policy keeps the limits that tensor.proto states. Where `workers` is 0 it is not known, and what depends
// on it is not checked. INVALID_ARGUMENT names the field, got and want.
absl::Status ValidatePolicy(const v1::ConsistencyPolicy& policy, uint32_t workers);

}  // namespace ballast
