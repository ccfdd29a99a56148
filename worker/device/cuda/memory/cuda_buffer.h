// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "worker/device/cuda/memory/half_copies.h"
#include "worker/device/cuda/memory/memory_pool.h"
#include "worker/device/cuda/stream/stream_order.h"
#include "worker/device/device_types.h"

namespace ballast {

// Owns a piece of a GPU's memory, and returns it after the operations and uploads issued before are done. Thread
// safety: that of its device.
class CudaBuffer : public Buffer {
 public:
  // The device's parts that a buffer uses; they outlive it.
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
    // An error here occurs again in the next operation, whose status is checked.
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
  // Operations take their inputs as const, but reading is a use, too.
  BufferUse& use() const { return use_; }
  // Call it after issuing an operation or upload that writes the buffer.
  void Written() const { parts_.halves.Written(memory_); }

 private:
  void* const memory_;
  const int64_t size_;
  const ElementType type_;
  const Parts parts_;
  mutable BufferUse use_;
};

}  // namespace ballast
