// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/gemm/packing.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace ballast {
namespace {

void TransposeScalar(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to, int64_t to_row) {
  for (int64_t p = 0; p < columns; ++p) {
    for (int64_t i = 0; i < rows; ++i) to[p * to_row + i] = from[i * from_row + p];
  }
}

// Transposes a 4 by 4 block.
void TransposeFour(const float* from, int64_t from_row, float* to, int64_t to_row) {
#if defined(__SSE__)
  __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + from_row);
  __m128 c = _mm_loadu_ps(from + 2 * from_row), d = _mm_loadu_ps(from + 3 * from_row);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(to, a);
  _mm_storeu_ps(to + to_row, b);
  _mm_storeu_ps(to + 2 * to_row, c);
  _mm_storeu_ps(to + 3 * to_row, d);
#else
  TransposeScalar(from, from_row, 4, 4, to, to_row);
#endif
}

}  // namespace

void Transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to, int64_t to_row) {
  // Both sides of a square stay in a cache that holds 8 lines whose addresses differ by powers of two.
  constexpr int64_t kSquare = 8;
  for (int64_t i0 = 0; i0 < rows; i0 += kSquare) {
    for (int64_t p0 = 0; p0 < columns; p0 += kSquare) {
      const int64_t i1 = std::min(i0 + kSquare, rows), p1 = std::min(p0 + kSquare, columns);
      for (int64_t p = p0; p < p1; p += 4) {
        for (int64_t i = i0; i < i1; i += 4) {
          const float* const source = from + i * from_row + p;
          float* const target = to + p * to_row + i;
          if (i + 4 <= i1 && p + 4 <= p1) {
            TransposeFour(source, from_row, target, to_row);
          } else {
            TransposeScalar(source, from_row, std::min<int64_t>(4, i1 - i), std::min<int64_t>(4, p1 - p), target,
                            to_row);
          }
        }
      }
    }
  }
}

void PackPanels(const float* from, int64_t from_row, int64_t depth, int64_t columns, int64_t width, float* to) {
  for (int64_t p = 0; p < depth; ++p, from += from_row) {
    float* row = to + p * width;
    for (int64_t j = 0; j < columns; j += width, row += depth * width) {
      const int64_t n = std::min(width, columns - j);
      std::memcpy(row, from + j, n * sizeof(float));
      std::fill(row + n, row + width, 0.0f);
    }
  }
}

void UnpackPanels(const float* from, int64_t depth, int64_t columns, int64_t width, float* to, int64_t to_row) {
  for (int64_t p = 0; p < depth; ++p, to += to_row) {
    const float* row = from + p * width;
    for (int64_t j = 0; j < columns; j += width, row += depth * width) {
      std::memcpy(to + j, row, std::min(width, columns - j) * sizeof(float));
    }
  }
}

}  // namespace ballast
