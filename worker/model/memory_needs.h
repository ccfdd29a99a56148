// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "common/metrics/memory_bytes.h"
#include "worker/device/device_types.h"

namespace ballast {

// The elements that a model needs on its device: a fixed number, plus a number for each example of its largest batch.
// All are floats, except activations. A value type.
struct MemoryNeeds {
  int64_t weights = 0;
  int64_t gradients = 0;
  // The layers' own memory, which does not depend on the batch.
  int64_t kept = 0;
  // Elements per example: labels; and activations with their gradients.
  int64_t per_example = 0;
  int64_t activations = 0;
  ElementType activation_type = ElementType::kFp32;

  // If activations have 16 bits, each weight also has a 16-bit copy, which is multiplied with them.
  MemoryBytes At(int64_t examples) const;
  // Returns the largest batch that fits into `bytes`; 0 if not even a batch of 1 fits.
  int64_t LargestBatch(int64_t bytes) const;
};

// A job setting that reduces memory, and the needs of the model with it.
struct MemoryAlternative {
  // Text of the job file, like "training.recompute: true".
  std::string setting;
  MemoryNeeds needs;
};

// Returns an error message for a model that does not fit into `free` bytes with batches of `batch` examples. It names
// the batch size that fits, the accumulate_batches that keeps the examples per step, and the alternatives that would
// help.
std::string DescribeShortage(const MemoryNeeds& needs, absl::Span<const MemoryAlternative> alternatives, int64_t batch,
                             int64_t free);

}  // namespace ballast
