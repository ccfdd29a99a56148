// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "common/shared_memory/shared_heap.h"

namespace ballast {

// Owns a slice's values at one version, shared by their readers. A pull holds them while they are sent; an update
// changes them in place if it is the only holder, and otherwise writes new ones.
// Thread safety: like a pointer's: each handle belongs to one thread, and the shared count is atomic. Written only
// while unique(), and a handle is copied only under the lock of the slice that holds the first one.
class ValueBuffer {
 public:
  ValueBuffer() = default;
  // The values are not initialized.
  explicit ValueBuffer(size_t elements) : ValueBuffer(elements, Free()) {
    shared_->data.reset(static_cast<float*>(::operator new[](elements * sizeof(float), kAlignment)));
  }
  // Same, but in this process's heap if that has room, so that clients of this machine can read them.
  static ValueBuffer Readable(size_t elements) {
    const size_t bytes = elements * sizeof(float);
    void* const memory = SharedHeap::OfProcess().Allocate(bytes);
    if (memory == nullptr) return ValueBuffer(elements);
    ValueBuffer buffer(elements, Free{bytes});
    buffer.shared_->data.reset(static_cast<float*>(memory));
    return buffer;
  }
  ValueBuffer(const ValueBuffer& other) : shared_(other.shared_) {
    if (shared_ != nullptr) shared_->holders.fetch_add(1, std::memory_order_relaxed);
  }
  ValueBuffer(ValueBuffer&& other) noexcept : shared_(std::exchange(other.shared_, nullptr)) {}
  ValueBuffer& operator=(ValueBuffer other) noexcept {
    std::swap(shared_, other.shared_);
    return *this;
  }
  ~ValueBuffer() {
    if (shared_ != nullptr && shared_->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared_;
  }

  size_t size() const { return shared_ == nullptr ? 0 : shared_->elements; }
  absl::Span<const float> values() const { return {shared_ == nullptr ? nullptr : shared_->data.get(), size()}; }
  absl::Span<float> mutable_values() { return {shared_->data.get(), size()}; }

  // True if this is the only holder; all reads by other holders are then complete.
  bool unique() const { return shared_->holders.load(std::memory_order_acquire) == 1; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    // Size of the memory if it is in the heap, or 0.
    size_t heap_bytes = 0;
    void operator()(float* data) const {
      if (heap_bytes > 0) return SharedHeap::OfProcess().Free(data, heap_bytes);
      ::operator delete[](data, kAlignment);
    }
  };
  struct Shared {
    std::atomic<int> holders;
    size_t elements;
    std::unique_ptr<float, Free> data;
  };

  ValueBuffer(size_t elements, Free free) : shared_(new Shared{{1}, elements, {nullptr, free}}) {}

  Shared* shared_ = nullptr;
};

}  // namespace ballast
