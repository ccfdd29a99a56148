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

// Elements of the smallest slice of a tensor that is cut without need: fewer are not worth a message of their own.
inline constexpr uint64_t kMinCutElements = uint64_t{64} << 10;

// Number of slices that CutIntoSlices returns.
uint64_t CountSlices(const v1::TensorSpec& spec);

// Cuts a tensor into nearly equal slices of at most kMaxSliceElements. Up to 8 slices are cut without need, because
// while one is applied, the next can arrive and the one before can return (decision 0066); not if the optimizer takes
// norms over a slice. The cuts do not depend on the number of servers.
std::vector<v1::SliceRange> CutIntoSlices(const v1::TensorSpec& spec);

}  // namespace ballast
