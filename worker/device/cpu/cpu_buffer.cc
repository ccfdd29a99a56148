// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/cpu_buffer.h"

#include <cstdio>
#include <cstdlib>

namespace ballast {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "cpu device: %s\n", what);
  std::abort();
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
