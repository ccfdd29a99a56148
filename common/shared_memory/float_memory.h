// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "common/shared_memory/shared_heap.h"

namespace ballast {

// Owns memory for floats, from a multiple of kAlignment bytes. Thread safety: as a pointer's.
class FloatMemory {
 public:
  // Two AVX-512 vectors; equal alignment everywhere keeps results the same.
  static constexpr size_t kAlignment = 128;

  // Null.
  FloatMemory() : FloatMemory(nullptr, 0) {}
  // With any content. Null if there is no memory, like the memory of the next two.
  static FloatMemory Private(size_t size) {
    void* memory = nullptr;
    return FloatMemory(posix_memalign(&memory, kAlignment, size * sizeof(float)) == 0 ? memory : nullptr, 0);
  }
  // Same, but in this process's heap if that has room, so that other processes of this user and machine can read it.
  static FloatMemory Readable(size_t size) {
    const size_t bytes = size * sizeof(float);
    void* const memory = SharedHeap::OfProcess().Allocate(bytes);
    return memory != nullptr ? FloatMemory(memory, bytes) : Private(size);
  }
  // All 0, which costs nothing until large memory is touched.
  static FloatMemory Zeroed(size_t size) { return FloatMemory(std::calloc(size * sizeof(float) + kAlignment, 1), 0); }

  float* data() const {
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory_.get());
    return reinterpret_cast<float*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }
  explicit operator bool() const { return memory_ != nullptr; }
  // Returns this memory; throws std::bad_alloc, as operator new does, if it is null.
  FloatMemory OrThrow() && {
    if (memory_ == nullptr) throw std::bad_alloc();
    return std::move(*this);
  }

 private:
  struct Free {
    // Size of the memory if it is in the heap, or 0.
    size_t heap_bytes;
    void operator()(void* memory) const {
      if (heap_bytes == 0) return std::free(memory);
      SharedHeap::OfProcess().Free(memory, heap_bytes);
    }
  };

  FloatMemory(void* memory, size_t heap_bytes) : memory_(memory, Free{heap_bytes}) {}

  // Aligned, or with kAlignment bytes more than it needs.
  std::unique_ptr<void, Free> memory_;
};

}  // namespace ballast
