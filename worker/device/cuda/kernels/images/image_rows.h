// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/images/image_geometry.h"
#include "worker/device/cuda/kernels/launch.h"
#include "worker/device/cuda/kernels/pack.h"

// Kernels over the rows of images, several rows a block. A thread handles some channels of a pixel at once.
namespace ballast {

// The rows that the calling block handles, of `count` in all.
struct Rows {
  unsigned count;
  unsigned a_block;
  int pixels;
  int channels;
  // Packs of channels in a pixel.
  int packs;

  __device__ unsigned First() const { return blockIdx.x * a_block; }
  // Pieces of work of this block.
  __device__ int Items() const {
    const unsigned left = count - First();
    return static_cast<int>(left < a_block ? left : a_block) * pixels * packs;
  }
};

// Place of a piece of work: W channels of a pixel.
template <int W>
struct Place {
  unsigned row;
  int column;
  int channel;
  // Index of the first of these channels in all rows.
  int64_t element;

  __device__ Place(const Rows& rows, int item) {
    const int pixel = item / rows.packs;
    channel = item % rows.packs * W;
    column = pixel % rows.pixels;
    row = rows.First() + pixel / rows.pixels;
    element = (static_cast<int64_t>(row) * rows.pixels + column) * rows.channels + channel;
  }
};

template <typename T, int W>
__device__ inline Pack<T, W> Rounded(const float (&values)[W]) {
  Pack<T, W> pack;
  for (int w = 0; w < W; ++w) pack.values[w] = static_cast<T>(values[w]);
  return pack;
}

// Launches a kernel over `count` rows of `pixels` x `channels` elements, whose threads handle `width` channels each.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchRows(cudaStream_t stream, int64_t count, int64_t pixels, int64_t channels, int width,
                       void (*kernel)(Geometry, Rows, Parameters...), const Geometry& geometry,
                       Arguments... arguments) {
  if (count == 0 || pixels * channels == 0) return cudaSuccess;
  if (const cudaError_t error = CheckRows(count, pixels * channels); error != cudaSuccess) return error;
  // Enough for a thread to be worth its start.
  constexpr int64_t kItems = 4 * kBlockThreads;
  const int64_t packs = channels / width, wanted = kItems / (pixels * packs);
  const int64_t a_block = wanted < 1 ? 1 : wanted;
  const Rows rows = {static_cast<unsigned>(count), static_cast<unsigned>(a_block), static_cast<int>(pixels),
                     static_cast<int>(channels), static_cast<int>(packs)};
  return Launch(stream, dim3(static_cast<unsigned>(CeilDivide(count, a_block))), kBlockThreads, kernel, geometry, rows,
                arguments...);
}

}  // namespace ballast
