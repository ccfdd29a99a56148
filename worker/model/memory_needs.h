// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/memory_bytes.h"

namespace ballast {

// The floats that a model needs on its device: fixed ones, and so many more for each example of its largest batch.
// A value type.
struct MemoryNeeds {
  int64_t weights = 0;
  int64_t gradients = 0;
  // Activations: what layers keep, whatever the batch; and of an example.
  int64_t kept = 0;
  int64_t per_example = 0;

  MemoryBytes At(int64_t examples) const;
  // The largest batch that so many bytes are enough for; 0: not even one of 1.
  int64_t LargestBatch(int64_t bytes) const;
};

// Why a model that is to take `batch` examples at once does not fit into `free` bytes, and what would: which batch,
// with how many of them to accumulate for as many examples a step; which one with recomputation, where `recomputing`
// says what that needs. Precision is no way out: buffers hold floats in any.
std::string DescribeShortage(const MemoryNeeds& needs, const std::optional<MemoryNeeds>& recomputing, int64_t batch,
                             int64_t free);

}  // namespace ballast
