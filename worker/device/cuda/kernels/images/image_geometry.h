// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/launch.h"
#include "worker/device/image_shape.h"

// Shared code of the kernels over images. Blocks handle rows of images, so that indices within them are divided in 32
// bits, which is many times faster than in 64.
namespace ballast {

// Shapes of a window operation, in the integers that kernels use.
struct Geometry {
  int height, width, channels;
  int out_height, out_width;
  int window_height, window_width;
  int vertical_stride, horizontal_stride;
  int vertical_padding, horizontal_padding;
};

inline Geometry MakeGeometry(const ImageShape& input, const Window& w) {
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  return {number(input.height),
          number(input.width),
          number(input.channels),
          number(w.OutputHeight(input.height)),
          number(w.OutputWidth(input.width)),
          number(w.height),
          number(w.width),
          number(w.vertical_stride),
          number(w.horizontal_stride),
          number(w.vertical_padding),
          number(w.horizontal_padding)};
}

// Indices from `begin` to before `end`.
struct Range {
  int begin, end;
};

// The part of [0, size) that a window of length `window` covers from `start`.
__device__ inline Range Covered(int start, int window, int size) {
  return {start > 0 ? start : 0, start + window < size ? start + window : size};
}

// The window positions along one side that cover index `at`.
__device__ inline Range PlacesOver(int at, int padding, int window, int stride, int places) {
  // Position p covers [p * stride - padding, p * stride - padding + window).
  const int past_first = at + padding - window;
  const int begin = past_first < 0 ? 0 : past_first / stride + 1;
  const int end = (at + padding) / stride + 1;
  return {begin, end < places ? end : places};
}

// Checks the limits of a kernel that uses one block for each of `rows` image rows.
inline cudaError_t CheckRows(int64_t rows, int64_t row_elements) {
  constexpr int64_t kMax = 0x7fffffff;
  return rows <= kMax && row_elements <= kMax ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace ballast
