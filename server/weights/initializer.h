// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Writes the first values of elements [offset, offset + out.size()) of a valid tensor. Each value is a function of the
// spec's seed and name and the element's index alone, so it is the same for every cut into slices and shards.
void Initialize(const v1::TensorSpec& spec, uint64_t offset, absl::Span<float> out);

}  // namespace ballast
