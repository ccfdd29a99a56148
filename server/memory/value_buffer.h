// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/types/span.h"

namespace ballast {

// A slice's values at one version, shared by those that read them. A pull holds them while they are sent; an update
// changes them in place where it is the only holder, and writes new ones else.
// Thread safety: as a pointer's: each handle is one thread's, what they share is counted atomically. Written only while
// unique(), and a handle is copied only under the lock of the slice that holds the first one.
class ValueBuffer {
 public:
  ValueBuffer() = default;
  // Not initialised.
  explicit ValueBuffer(size_t elements) : shared_(new Shared{{1}, elements, {}}) {
    shared_->data.reset(static_cast<float*>(::operator new[](elements * sizeof(float), kAlignment)));
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

  // Whether this is the only holder; what the others read is then over.
  bool unique() const { return shared_->holders.load(std::memory_order_acquire) == 1; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(float* data) const { ::operator delete[](data, kAlignment); }
  };
  struct Shared {
    std::atomic<int> holders;
    size_t elements;
    std::unique_ptr<float, Free> data;
  };

  Shared* shared_ = nullptr;
};

}  // namespace ballast
