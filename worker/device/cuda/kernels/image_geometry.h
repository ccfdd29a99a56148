// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/launch.h"
#include "worker/device/image_shape.h"

// What kernels over images share. A block takes one row of one image and its threads stride over the row's elements, so
// that indices are divided in 32 bits, which is many times as fast as in 64.
namespace ballast {

// A window over images, in the numbers that kernels compute with.
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

// From `begin` to before `end`.
struct Range {
  int begin, end;
};

// What of [0, size) a window of `window` that begins at `start` covers.
__device__ inline Range Covered(int start, int window, int size) {
  return {start > 0 ? start : 0, start + window < size ? start + window : size};
}

// The places of a window along one side that cover position `at`.
__device__ inline Range PlacesOver(int at, int padding, int window, int stride, int places) {
  // Place p covers [p * stride - padding, p * stride - padding + window).
  const int past_first = at + padding - window;
  const int begin = past_first < 0 ? 0 : past_first / stride + 1;
  const int end = (at + padding) / stride + 1;
  return {begin, end < places ? end : places};
}

// For a kernel over `rows` rows of images: one block each.
inline cudaError_t CheckRows(int64_t rows, int64_t row_elements) {
  constexpr int64_t kMost = 0x7fffffff;
  return rows <= kMost && row_elements <= kMost ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace ballast
