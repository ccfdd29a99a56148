// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "common/metrics/memory_bytes.h"
#include "worker/device/device_types.h"

namespace ballast {

// The elements that a model needs on its device: fixed ones, and so many more for each example of its largest batch.
// Floats, but for activations. A value type.
struct MemoryNeeds {
  int64_t weights = 0;
  int64_t gradients = 0;
  // What layers keep, whatever the batch.
  int64_t kept = 0;
  // Of an example: labels; and activations with their gradients.
  int64_t per_example = 0;
  int64_t activations = 0;
  ElementType activation_type = ElementType::kFp32;

  // Where activations have 16 bits the weights have copies in 16 bits, too, which are multiplied with them.
  MemoryBytes At(int64_t examples) const;
  // The largest batch that so many bytes are enough for; 0: not even one of 1.
  int64_t LargestBatch(int64_t bytes) const;
};

// What else a job could ask for, and what the model would need then.
struct MemoryAlternative {
  // As the job file has it: "training.recompute: true".
  std::string setting;
  MemoryNeeds needs;
};

// Why a model that is to take `batch` examples at once does not fit into `free` bytes, and what would: which batch,
// with how many of them to accumulate for as many examples a step; and which alternatives, with which batch.
std::string DescribeShortage(const MemoryNeeds& needs, absl::Span<const MemoryAlternative> alternatives, int64_t batch,
                             int64_t free);

}  // namespace ballast
