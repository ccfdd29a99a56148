// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Valid policies, for error messages.
inline constexpr absl::string_view kPolicyModes = "sync, async, bounded or local_sgd";

// Returns "sync", "async", "bounded" or "local_sgd"; empty if no kind is set.
absl::string_view PolicyMode(const v1::ConsistencyPolicy& policy);

// Checks the policy against the limits in tensor.proto. If `workers` is 0 (unknown), limits that depend on it are not
// checked. INVALID_ARGUMENT names field, got and want.
absl::Status ValidatePolicy(const v1::ConsistencyPolicy& policy, uint32_t workers);

}  // namespace ballast
