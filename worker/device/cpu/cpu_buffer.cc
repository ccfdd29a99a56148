// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/cpu_buffer.h"

#include <cstdio>
#include <cstdlib>

#include "common/shared_memory/shared_heap.h"

namespace ballast {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "cpu device: %s\n", what);
  std::abort();
}

CpuBuffer::~CpuBuffer() {
  *used_ -= size_;
  if (heap_bytes_ > 0) {
    SharedHeap::OfProcess().Free(memory_, heap_bytes_);
  } else {
    std::free(memory_);
  }
}

float* Data(const Buffer& buffer, int64_t count) {
  Require(count <= buffer.size(), "buffer is too short");
  return Data(buffer);
}

absl::Span<float> Elements(const Matrix& m) {
  Require(m.buffer != nullptr && m.elements() <= m.buffer->size(), "matrix is outside its buffer");
  return {Data(*m.buffer), static_cast<size_t>(m.elements())};
}

}  // namespace ballast
