// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "worker/device/cuda/half_copies.h"
#include "worker/device/cuda/memory_pool.h"
#include "worker/device/cuda/stream_order.h"
#include "worker/device/device_types.h"

namespace ballast {

// A piece of a GPU's memory, given back once the operations and uploads issued before are done. Thread safety: its
// device's.
class CudaBuffer : public Buffer {
 public:
  // `memory` came from `pool`.
  CudaBuffer(float* memory, int64_t size, MemoryPool* pool, StreamOrder* order, HalfCopies* halves)
      : memory_(memory), size_(size), pool_(*pool), order_(*order), halves_(*halves) {
    halves_.Add(memory_);
  }
  ~CudaBuffer() override {
    BufferUse* const operands[] = {&use_};
    // What fails here fails again in the next operation, which is asked for its error.
    order_.BeforeOperation(operands).IgnoreError();
    halves_.Remove(memory_);
    pool_.GiveBack(memory_).IgnoreError();
  }
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;

  int64_t size() const override { return size_; }
  absl::Span<float> host() override { return {}; }

  float* data() const { return memory_; }
  // Operations read what they take as const, and that, too, is a use.
  BufferUse& use() const { return use_; }
  // After each operation and upload that writes it was issued.
  void Written() const { halves_.Written(memory_); }

 private:
  float* const memory_;
  const int64_t size_;
  MemoryPool& pool_;
  StreamOrder& order_;
  HalfCopies& halves_;
  mutable BufferUse use_;
};

}  // namespace ballast
