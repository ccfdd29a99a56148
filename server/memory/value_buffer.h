// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include "absl/types/span.h"
#include "common/shared_memory/float_memory.h"
#include "common/wire/buffer_pool.h"

namespace ballast {

// Owns a slice's values at one version, shared by their readers. A pull holds them while they are sent; an update
// changes them in place if it is the only holder, and otherwise writes new ones.
// Thread safety: like a pointer's: each handle belongs to one thread, and the shared count is atomic. Written only
// while unique(), and a handle is copied only under the lock of the slice that holds the first one.
class ValueBuffer {
 public:
  ValueBuffer() = default;
  // The values are not initialized.
  explicit ValueBuffer(size_t elements) : ValueBuffer(elements, FloatMemory::Private(elements).OrThrow()) {}
  // Values that came in a message, whose memory this takes; they are part of it.
  ValueBuffer(BufferPool::Buffer message, absl::Span<const float> values) : ValueBuffer(values.size(), FloatMemory()) {
    shared_->data = const_cast<float*>(values.data());
    shared_->message = std::move(message);
  }
  // Same, but where clients of this machine can read them, if this process's heap has room.
  static ValueBuffer Readable(size_t elements) {
    return ValueBuffer(elements, FloatMemory::Readable(elements).OrThrow());
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
  // Bytes of memory.
  size_t bytes() const {
    return shared_ == nullptr ? 0 : std::max(size() * sizeof(float), shared_->message.capacity());
  }
  absl::Span<const float> values() const { return {shared_ == nullptr ? nullptr : shared_->data, size()}; }
  absl::Span<float> mutable_values() { return {shared_->data, size()}; }

  // True if this is the only holder; all reads by other holders are then complete.
  bool unique() const { return shared_->holders.load(std::memory_order_acquire) == 1; }

 private:
  struct Shared {
    std::atomic<int> holders;
    size_t elements;
    float* data;
    // One of the two has the values.
    FloatMemory memory;
    BufferPool::Buffer message;
  };

  ValueBuffer(size_t elements, FloatMemory memory)
      : shared_(new Shared{{1}, elements, memory.data(), std::move(memory), {}}) {}

  Shared* shared_ = nullptr;
};

}  // namespace ballast
