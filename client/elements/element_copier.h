// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace ballast {

// Copies a tensor's floats between a message and memory that the host cannot address, such as a GPU's. The client calls
// it when it writes or reads the message, so that floats in shared memory are copied once. Offsets are in elements.
// Thread safety: all methods may be called from any thread, until the call's future is ready.
class ElementCopier {
 public:
  virtual ~ElementCopier() = default;

  // Copies the gradient's elements from `offset` on. May be called again for the same elements, which are still equal.
  virtual absl::Status Fetch(size_t offset, absl::Span<float> to) = 0;
  // Copies values to the elements from `offset` on, and has read them on return.
  virtual absl::Status Store(size_t offset, absl::Span<const float> from) = 0;
};

}  // namespace ballast
