// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "worker/device/device_types.h"

namespace ballast {

// Two AVX-512 loads; the same alignment everywhere keeps the arithmetic the same.
inline constexpr size_t kCpuAlignment = 128;

// Aborts with the message where the condition does not hold: a caller's bug.
void Require(bool condition, const char* what);

// The CPU device's memory.
class CpuBuffer : public Buffer {
 public:
  // `memory` is from calloc, which takes large pieces from the system as zeros that cost nothing until they are
  // touched, and holds `size` floats and kCpuAlignment bytes more. `used` counts the floats of all buffers.
  CpuBuffer(void* memory, int64_t size, std::atomic<int64_t>* used) : memory_(memory), size_(size), used_(used) {
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
};

// Of a buffer of the CPU device.
inline float* Data(const Buffer& buffer) { return static_cast<const CpuBuffer&>(buffer).data(); }

// The buffer's first `count` elements, which it must have.
float* Data(const Buffer& buffer, int64_t count);

// Of a matrix, which must be inside its buffer.
absl::Span<float> Elements(const Matrix& m);

}  // namespace ballast
