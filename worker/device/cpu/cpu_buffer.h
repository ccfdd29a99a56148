// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "worker/device/device_types.h"

namespace ballast {

// Two AVX-512 vectors; equal alignment everywhere keeps results the same.
inline constexpr size_t kCpuAlignment = 128;

// Aborts with the message if the condition is false, which is a bug of the caller.
void Require(bool condition, const char* what);

// Owns memory of the CPU device.
class CpuBuffer : public Buffer {
 public:
  // `memory` is from calloc, whose large zeroed pieces cost nothing until they are touched, or, with `heap_bytes`, that
  // many of this process's heap. It holds `size` floats plus kCpuAlignment bytes. `used` counts the floats of all
  // buffers.
  CpuBuffer(void* memory, int64_t size, std::atomic<int64_t>* used, size_t heap_bytes = 0)
      : memory_(memory), size_(size), used_(used), heap_bytes_(heap_bytes) {
    *used_ += size;
  }
  ~CpuBuffer() override;
  CpuBuffer(const CpuBuffer&) = delete;
  CpuBuffer& operator=(const CpuBuffer&) = delete;

  int64_t size() const override { return size_; }
  ElementType type() const override { return ElementType::kFp32; }
  absl::Span<float> host() override { return {data(), static_cast<size_t>(size_)}; }

  float* data() const {
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory_);
    return reinterpret_cast<float*>((address + kCpuAlignment - 1) / kCpuAlignment * kCpuAlignment);
  }

 private:
  void* const memory_;
  const int64_t size_;
  std::atomic<int64_t>* const used_;
  const size_t heap_bytes_;
};

// The memory of a buffer of the CPU device.
inline float* Data(const Buffer& buffer) { return static_cast<const CpuBuffer&>(buffer).data(); }

// The buffer's first `count` elements; aborts if it has fewer.
float* Data(const Buffer& buffer, int64_t count);

// The elements of a matrix; aborts if it is outside its buffer.
absl::Span<float> Elements(const Matrix& m);

}  // namespace ballast
