// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include "absl/types/span.h"
#include "common/shared_memory/shared_heap.h"

namespace ballast {

// Owns floats, which are 0 at first, in this process's heap if that has room: a client of this process pushes such a
// gradient to a server of its machine without a copy of its own. Thread safety: as a vector.
class SharedFloats {
 public:
  explicit SharedFloats(size_t size) : size_(size), memory_(Allocate(size)) { std::fill_n(memory_.get(), size, 0.0f); }

  size_t size() const { return size_; }
  float* data() { return memory_.get(); }
  absl::Span<float> span() { return {memory_.get(), size_}; }
  absl::Span<const float> span() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    // Size of the memory if it is in the heap, or 0.
    size_t heap_bytes = 0;
    void operator()(float* memory) const {
      if (heap_bytes == 0) return delete[] memory;
      SharedHeap::OfProcess().Free(memory, heap_bytes);
    }
  };

  using Memory = std::unique_ptr<float[], Free>;

  static Memory Allocate(size_t size) {
    const size_t bytes = size * sizeof(float);
    void* const memory = SharedHeap::OfProcess().Allocate(bytes);
    if (memory == nullptr) return Memory(new float[size], Free());
    return Memory(static_cast<float*>(memory), Free{bytes});
  }

  size_t size_;
  Memory memory_;
};

}  // namespace ballast
