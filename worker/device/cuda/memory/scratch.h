// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "worker/device/cuda/memory/memory_pool.h"

namespace ballast {

// Owns memory for one operation; the destructor returns it, in stream order.
class Scratch {
 public:
  static absl::StatusOr<Scratch> Make(MemoryPool* memory, int64_t bytes) {
    return Make(memory, memory->Take(bytes > 0 ? bytes : 1));
  }
  // Like Make, for memory that outlives a segment.
  static absl::StatusOr<Scratch> MakeLasting(MemoryPool* memory, int64_t bytes) {
    return Make(memory, memory->TakeLasting(bytes > 0 ? bytes : 1));
  }

  ~Scratch() {
    // An error here occurs again in the next operation, whose status is checked.
    if (taken_ != nullptr) memory_->GiveBack(taken_).IgnoreError();
  }
  Scratch(Scratch&& other) noexcept : memory_(other.memory_), taken_(std::exchange(other.taken_, nullptr)) {}
  Scratch& operator=(Scratch&&) = delete;

  float* floats() const { return static_cast<float*>(taken_); }
  void* bytes() const { return taken_; }

 private:
  static absl::StatusOr<Scratch> Make(MemoryPool* memory, absl::StatusOr<void*> taken) {
    if (!taken.ok()) return taken.status();
    return Scratch(memory, *taken);
  }

  Scratch(MemoryPool* memory, void* taken) : memory_(memory), taken_(taken) {}

  MemoryPool* memory_;
  void* taken_;
};

}  // namespace ballast
