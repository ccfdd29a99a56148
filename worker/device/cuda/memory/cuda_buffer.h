// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "worker/device/cuda/memory/half_copies.h"
#include "worker/device/cuda/memory/memory_pool.h"
#include "worker/device/cuda/stream/stream_order.h"
#include "worker/device/device_types.h"

namespace ballast {

// A piece of a GPU's memory, given back once the operations and uploads issued before are done. Thread safety: its
// device's.
class CudaBuffer : public Buffer {
 public:
  // What a buffer stands on; outlives it.
  struct Parts {
    MemoryPool& pool;
    StreamOrder& order;
    HalfCopies& halves;
  };

  // `memory` came from the pool.
  CudaBuffer(void* memory, int64_t size, ElementType type, const Parts& parts)
      : memory_(memory), size_(size), type_(type), parts_(parts) {
    parts_.halves.Add(memory_);
  }
  ~CudaBuffer() override {
    BufferUse* const operands[] = {&use_};
    // What fails here fails again in the next operation, which is asked for its error.
    parts_.order.BeforeOperation(operands).IgnoreError();
    parts_.halves.Remove(memory_);
    parts_.pool.GiveBack(memory_).IgnoreError();
  }
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;

  int64_t size() const override { return size_; }
  ElementType type() const override { return type_; }
  absl::Span<float> host() override { return {}; }

  void* data() const { return memory_; }
  // Operations read what they take as const, and that, too, is a use.
  BufferUse& use() const { return use_; }
  // After each operation and upload that writes it was issued.
  void Written() const { parts_.halves.Written(memory_); }

 private:
  void* const memory_;
  const int64_t size_;
  const ElementType type_;
  const Parts parts_;
  mutable BufferUse use_;
};

}  // namespace ballast
