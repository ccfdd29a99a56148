// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/types/span.h"
#include "common/shared_memory/float_memory.h"
#include "worker/device/device_types.h"

namespace ballast {

// Aborts with the message if the condition is false, which is a bug of the caller.
void Require(bool condition, const char* what);

// Owns memory of the CPU device.
class CpuBuffer : public Buffer {
 public:
  // `memory` holds `size` floats. `used` counts the floats of all buffers.
  CpuBuffer(FloatMemory memory, int64_t size, std::atomic<int64_t>* used)
      : memory_(std::move(memory)), size_(size), used_(used) {
    *used_ += size;
  }
  ~CpuBuffer() override { *used_ -= size_; }
  CpuBuffer(const CpuBuffer&) = delete;
  CpuBuffer& operator=(const CpuBuffer&) = delete;

  int64_t size() const override { return size_; }
  ElementType type() const override { return ElementType::kFp32; }
  absl::Span<float> host() override { return {data(), static_cast<size_t>(size_)}; }

  float* data() const { return memory_.data(); }

 private:
  const FloatMemory memory_;
  const int64_t size_;
  std::atomic<int64_t>* const used_;
};

// The memory of a buffer of the CPU device.
inline float* Data(const Buffer& buffer) { return static_cast<const CpuBuffer&>(buffer).data(); }

// The buffer's first `count` elements; aborts if it has fewer.
float* Data(const Buffer& buffer, int64_t count);

// The elements of a matrix; aborts if it is outside its buffer.
absl::Span<float> Elements(const Matrix& m);

}  // namespace ballast
