// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/gemm/packing.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace ballast {
namespace {

// Transposes kRows rows.
template <int kRows>
void TransposeRows(const float* from, int64_t from_row, int64_t columns, float* to, int64_t to_row) {
  int64_t p = 0;
#if defined(__SSE__)
  for (; kRows > 1 && p + 4 <= columns; p += 4) {
    float* const row = to + p * to_row;
    for (int i = 0; i < kRows; i += 4) {
      const float* const source = from + i * from_row + p;
      __m128 a = _mm_loadu_ps(source), b = _mm_loadu_ps(source + from_row);
      if constexpr (kRows == 2) {
        const __m128 low = _mm_unpacklo_ps(a, b), high = _mm_unpackhi_ps(a, b);
        _mm_storel_pi(reinterpret_cast<__m64*>(row), low);
        _mm_storeh_pi(reinterpret_cast<__m64*>(row + to_row), low);
        _mm_storel_pi(reinterpret_cast<__m64*>(row + 2 * to_row), high);
        _mm_storeh_pi(reinterpret_cast<__m64*>(row + 3 * to_row), high);
      } else {
        __m128 c = _mm_loadu_ps(source + 2 * from_row), d = _mm_loadu_ps(source + 3 * from_row);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_storeu_ps(row + i, a);
        _mm_storeu_ps(row + to_row + i, b);
        _mm_storeu_ps(row + 2 * to_row + i, c);
        _mm_storeu_ps(row + 3 * to_row + i, d);
      }
    }
  }
#endif
  for (; p < columns; ++p) {
    for (int i = 0; i < kRows; ++i) to[p * to_row + i] = from[i * from_row + p];
  }
}

// A copy of a size that the compiler knows takes a few instructions, any other a call.
void CopyPanelRow(const float* from, int64_t n, float* to) {
  switch (n) {
    case 6:
      std::memcpy(to, from, 6 * sizeof(float));
      return;
    case 16:
      std::memcpy(to, from, 16 * sizeof(float));
      return;
    default:
      std::memcpy(to, from, n * sizeof(float));
  }
}

// Copies the first n numbers of a panel's row, and pads it with zeros.
void PackPanelRow(const float* from, int64_t n, int64_t width, float* to) {
  CopyPanelRow(from, n, to);
  if (n < width) std::fill(to + n, to + width, 0.0f);
}

// Copies a row to consecutive panels of a width that the compiler knows.
template <int64_t kWidth>
void PackRowTo(const float* from, int64_t columns, int64_t panel, float* to) {
  for (; columns >= kWidth; columns -= kWidth, from += kWidth, to += panel) {
    std::memcpy(to, from, kWidth * sizeof(float));
  }
  if (columns > 0) PackPanelRow(from, columns, kWidth, to);
}

}  // namespace

void Transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to, int64_t to_row) {
  // Lines whose addresses differ by a power of two have few places in a cache. So it goes along the lines of that side
  // whose lines are farther apart.
  const int64_t part = to_row > from_row ? 4 : columns;
  for (int64_t p = 0; p < columns; p += part, from += part, to += part * to_row) {
    const int64_t n = std::min(part, columns - p);
    int64_t i = 0;
    for (; i + 8 <= rows; i += 8) TransposeRows<8>(from + i * from_row, from_row, n, to + i, to_row);
    for (; i + 4 <= rows; i += 4) TransposeRows<4>(from + i * from_row, from_row, n, to + i, to_row);
    for (; i + 2 <= rows; i += 2) TransposeRows<2>(from + i * from_row, from_row, n, to + i, to_row);
    if (i < rows) TransposeRows<1>(from + i * from_row, from_row, n, to + i, to_row);
  }
}

void PackPanels(const float* from, int64_t from_row, int64_t depth, int64_t columns, int64_t width, float* to) {
  // A few rows at a time, since panels may be a power of two apart, and such lines have few places in a cache.
  constexpr int64_t kRowsAtOnce = 8;
  for (int64_t first = 0; first < depth; first += kRowsAtOnce, from += kRowsAtOnce * from_row) {
    const int64_t rows = std::min(kRowsAtOnce, depth - first);
    float* panel = to + first * width;
    for (int64_t j = 0; j < columns; j += width, panel += depth * width) {
      const int64_t n = std::min(width, columns - j);
      for (int64_t p = 0; p < rows; ++p) PackPanelRow(from + p * from_row + j, n, width, panel + p * width);
    }
  }
}

void BlockPacker::PackRow() {
  // Memory answers before so many rows have been packed.
  constexpr int64_t kRowsAhead = 4;
  constexpr int64_t kLine = 16;
  const float* const from = from_ + packed_ * from_row_;
  const int64_t ahead = packed_ + kRowsAhead;
  const float* const soon = ahead < rows_ ? from_ + ahead * from_row_ : then_ + (ahead - rows_) * from_row_;
  for (int64_t j = 0; j < columns_; j += kLine) __builtin_prefetch(soon + j, 0, 2);
  float* const to = to_ + packed_ * width_;
  if (width_ == 16) {
    PackRowTo<16>(from, columns_, panel_, to);
  } else {
    PackRowTo<64>(from, columns_, panel_, to);
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
