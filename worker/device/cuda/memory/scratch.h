// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "worker/device/cuda/memory/memory_pool.h"

namespace ballast {

// Memory for one operation: given back, in stream order, when this goes.
class Scratch {
 public:
  static absl::StatusOr<Scratch> Make(MemoryPool* memory, int64_t bytes) {
    return Make(memory, memory->Take(bytes > 0 ? bytes : 1));
  }
  // The same for more than one: what outlives a segment.
  static absl::StatusOr<Scratch> MakeLasting(MemoryPool* memory, int64_t bytes) {
    return Make(memory, memory->TakeLasting(bytes > 0 ? bytes : 1));
  }

  ~Scratch() {
    // What fails here fails again in the next operation, which is asked for its error.
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
