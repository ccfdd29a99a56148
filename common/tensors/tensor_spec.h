// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Elements of the largest slice: slightly under 1 Mi, so that a message with one whole fp32 slice fits gRPC's default
// limit of 4 MiB.
inline constexpr uint64_t kMaxSliceElements = (uint64_t{1} << 20) - 4096;

inline constexpr uint64_t kMaxTensorElements = uint64_t{1} << 40;

// Checks that a job name is 1 to 63 characters of a-z, 0-9, '_' and '-'.
absl::Status ValidateJobName(absl::string_view name);

// Checks the spec against the limits in tensor.proto. INVALID_ARGUMENT names the tensor, got and want.
absl::Status ValidateTensorSpec(const v1::TensorSpec& spec);

// Returns the product of the shape; the spec must be valid.
uint64_t CountElements(const v1::TensorSpec& spec);

// Cuts a tensor into nearly equal slices of at most kMaxSliceElements.
std::vector<v1::SliceRange> CutIntoSlices(uint64_t elements);

}  // namespace ballast
