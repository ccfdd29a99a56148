// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "absl/types/span.h"
#include "common/shared_memory/float_memory.h"

namespace ballast {

// Owns floats, which are 0 at first, in this process's heap if that has room: a client of this process pushes such a
// gradient to a server of its machine without a copy of its own. Thread safety: as a vector.
class SharedFloats {
 public:
  explicit SharedFloats(size_t size) : size_(size), memory_(FloatMemory::Readable(size).OrThrow()) {
    std::fill_n(data(), size, 0.0f);
  }

  size_t size() const { return size_; }
  float* data() { return memory_.data(); }
  absl::Span<float> span() { return {memory_.data(), size_}; }
  absl::Span<const float> span() const { return {memory_.data(), size_}; }

 private:
  size_t size_;
  FloatMemory memory_;
};

}  // namespace ballast
