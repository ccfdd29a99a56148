// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "worker/device/cuda/kernels/column_sums.h"
#include "worker/device/cuda/kernels/images/image_geometry.h"
#include "worker/device/cuda/kernels/images/narrow_convolution.h"
#include "worker/device/cuda/kernels/launch.h"
#include "worker/device/cuda/kernels/pack.h"

namespace ballast {
namespace {

// Products for an output, in the two sizes that kernels are compiled for.
constexpr int kFew = 9, kMost = 27;
// Shared memory of a block: the pixels under a band, and afterwards the sums of half its threads.
constexpr int kSharedFloats = kBlockThreads / 2 * 54;
// Enough blocks to fill the largest GPU: for its outputs, and so few that adding their sums takes no time.
constexpr int64_t kOutputBlocks = 1056, kSumBlocks = 396;

// Output rows of an image are computed in bands, by a block at a time. A thread has some filters, the pack, and takes
// the places of a band by turns with the threads of the other lanes, which have the same filters.
struct Bands {
  int64_t count;
  int an_image;
  // Output rows in a band; the last band of an image may have fewer.
  int rows;
  // Floats in a row of pixels under a band, padding included.
  int pixel_row;
  int filters;
  int packs;
  int lanes;
  // Products for an output, and how many of them are adjacent in a row of pixels.
  int products;
  int adjacent;
};

// The part of a band that concerns all threads of a block.
struct Band {
  int64_t example;
  int first_row;
  int places;

  __device__ Band(const Geometry& g, const Bands& bands, int64_t number)
      : example(number / bands.an_image), first_row(static_cast<int>(number % bands.an_image) * bands.rows) {
    const int left = g.out_height - first_row;
    places = (left < bands.rows ? left : bands.rows) * g.out_width;
  }

  __device__ int64_t FirstOutput(const Geometry& g, const Bands& bands) const {
    return (example * g.out_height + first_row) * g.out_width * bands.filters;
  }
};

// Copies the pixels under a band, as floats, with zeros for the padding. All threads of the block call it.
template <typename T>
__device__ void LoadPixels(const Geometry& g, const Bands& bands, const Band& band, const T* x, float* pixels) {
  const int top = band.first_row * g.vertical_stride - g.vertical_padding;
  const int rows = (band.places / g.out_width - 1) * g.vertical_stride + g.window_height;
  const int row_elements = g.width * g.channels;
  const T* const image = x + band.example * g.height * row_elements;
  for (int i = threadIdx.x; i < rows * bands.pixel_row; i += blockDim.x) {
    const int row = top + i / bands.pixel_row;
    const int at = i % bands.pixel_row - g.horizontal_padding * g.channels;
    const bool inside = row >= 0 && row < g.height && at >= 0 && at < row_elements;
    pixels[i] = inside ? static_cast<float>(image[static_cast<int64_t>(row) * row_elements + at]) : 0.0f;
  }
}

// Returns the index in the pixels at which the window of a place begins.
__device__ inline int WindowAt(const Geometry& g, const Bands& bands, int place) {
  return place / g.out_width * g.vertical_stride * bands.pixel_row +
         place % g.out_width * g.horizontal_stride * g.channels;
}

// Distances of a window's elements from its first one; 0 for those past the last.
template <int W>
__device__ void SetOffsets(const Bands& bands, int (&offsets)[W]) {
  for (int w = 0; w < W; ++w) {
    offsets[w] = w < bands.products ? w / bands.adjacent * bands.pixel_row + w % bands.adjacent : 0;
  }
}

// P filters a thread, and windows of at most W elements.
template <typename T, int P, int W>
__global__ void __launch_bounds__(kBlockThreads)
    NarrowConvolutionKernel(Geometry g, Bands bands, const T* x, const float* filters, const float* bias, T* y) {
  __shared__ float pixels[kSharedFloats];
  const int first = static_cast<int>(threadIdx.x) % bands.packs * P;
  const int lane = static_cast<int>(threadIdx.x) / bands.packs;
  int offsets[W];
  SetOffsets(bands, offsets);
  float weights[P][W], start[P];
  for (int p = 0; p < P; ++p) {
    start[p] = bias != nullptr ? bias[first + p] : 0.0f;
    for (int w = 0; w < W; ++w) weights[p][w] = w < bands.products ? filters[(first + p) * bands.products + w] : 0.0f;
  }
  for (int64_t number = blockIdx.x; number < bands.count; number += gridDim.x) {
    const Band band(g, bands, number);
    __syncthreads();
    LoadPixels(g, bands, band, x, pixels);
    __syncthreads();
    T* const outputs = y + band.FirstOutput(g, bands) + first;
    const int places = lane < bands.lanes ? band.places : 0;
    for (int place = lane; place < places; place += bands.lanes) {
      const float* const window = pixels + WindowAt(g, bands, place);
      float sums[P];
      for (int p = 0; p < P; ++p) sums[p] = start[p];
      for (int w = 0; w < W; ++w) {
        const float pixel = window[offsets[w]];
        for (int p = 0; p < P; ++p) sums[p] += pixel * weights[p][w];
      }
      Pack<T, P> pack;
      for (int p = 0; p < P; ++p) pack.values[p] = static_cast<T>(sums[p]);
      StorePack(pack, outputs + static_cast<int64_t>(place) * bands.filters);
    }
  }
}

// Block b writes the sums over its bands to sums[b][filters * products].
template <typename T, int P, int W>
__global__ void __launch_bounds__(kBlockThreads)
    NarrowFilterGradientsKernel(Geometry g, Bands bands, const T* x, const T* dy, float* sums) {
  static_assert(P * W * kBlockThreads / 2 <= kSharedFloats);
  __shared__ float shared[kSharedFloats];
  const int pack = static_cast<int>(threadIdx.x) % bands.packs, first = pack * P;
  const int lane = static_cast<int>(threadIdx.x) / bands.packs;
  int offsets[W];
  SetOffsets(bands, offsets);
  float own[P][W] = {};
  for (int64_t number = blockIdx.x; number < bands.count; number += gridDim.x) {
    const Band band(g, bands, number);
    __syncthreads();
    LoadPixels(g, bands, band, x, shared);
    __syncthreads();
    const T* const gradients = dy + band.FirstOutput(g, bands) + first;
    const int places = lane < bands.lanes ? band.places : 0;
    for (int place = lane; place < places; place += bands.lanes) {
      const Pack<T, P> gradient = LoadPack<P>(gradients + static_cast<int64_t>(place) * bands.filters);
      const float* const window = shared + WindowAt(g, bands, place);
      for (int w = 0; w < W; ++w) {
        const float pixel = window[offsets[w]];
        for (int p = 0; p < P; ++p) own[p][w] += static_cast<float>(gradient.values[p]) * pixel;
      }
    }
  }
  // Halves the number of lanes that have sums, until one is left.
  for (int lanes = bands.lanes; lanes > 1; lanes = (lanes + 1) / 2) {
    const int kept = (lanes + 1) / 2, given = lanes - kept;
    __syncthreads();
    if (lane >= kept && lane < lanes) {
      for (int i = 0; i < P * W; ++i) shared[(i * given + lane - kept) * bands.packs + pack] = own[i / W][i % W];
    }
    __syncthreads();
    if (lane < given) {
      for (int i = 0; i < P * W; ++i) own[i / W][i % W] += shared[(i * given + lane) * bands.packs + pack];
    }
  }
  if (lane != 0) return;
  float* const out = sums + (static_cast<int64_t>(blockIdx.x) * bands.filters + first) * bands.products;
  for (int p = 0; p < P; ++p) {
    for (int w = 0; w < W; ++w) {
      if (w < bands.products) out[p * bands.products + w] = own[p][w];
    }
  }
}

// Floats in a row of pixels under the outputs, and in the pixels under `rows` rows of outputs.
int64_t PixelRow(const ConvShape& shape) {
  const Window& w = shape.window;
  return ((shape.output().width - 1) * w.horizontal_stride + w.width) * shape.input.channels;
}

int64_t PixelsUnder(const ConvShape& shape, int64_t rows) {
  return ((rows - 1) * shape.window.vertical_stride + shape.window.height) * PixelRow(shape);
}

Bands MakeBands(const ConvShape& shape, int64_t examples, int filters_a_thread) {
  // Places and filters of a band: several for each thread, and few enough to spread the bands of a small batch.
  constexpr int64_t kItems = 8 * kBlockThreads;
  const ImageShape out = shape.output();
  const int64_t packs = shape.filters / filters_a_thread;
  int64_t rows = std::clamp<int64_t>(kItems / (out.width * packs), 1, out.height);
  while (rows > 1 && PixelsUnder(shape, rows) > kSharedFloats) --rows;
  const int64_t an_image = CeilDivide(out.height, rows);
  return {examples * an_image,
          static_cast<int>(an_image),
          static_cast<int>(rows),
          static_cast<int>(PixelRow(shape)),
          static_cast<int>(shape.filters),
          static_cast<int>(packs),
          static_cast<int>(kBlockThreads / packs),
          static_cast<int>(shape.filter_elements()),
          static_cast<int>(shape.window.width * shape.input.channels)};
}

// At most, whatever the number of filters a thread.
int64_t SumBlocks(const ConvShape& shape, int64_t examples) {
  return std::min(kSumBlocks, examples * shape.output().height);
}

// Calls launch(P, W) and returns its result; P and W are std::integral_constants: filters a thread, and the most
// products. `outputs` are the elements with the filters' order.
template <typename LaunchSizes>
cudaError_t WithSizes(const ConvShape& shape, const void* outputs, LaunchSizes launch) {
  const bool few = shape.filter_elements() <= kFew, aligned = StartsPack(outputs);
  using Few = std::integral_constant<int, kFew>;
  using Most = std::integral_constant<int, kMost>;
  if (few && aligned && shape.filters % 4 == 0) return launch(std::integral_constant<int, 4>(), Few());
  if (!few && aligned && shape.filters % 2 == 0) return launch(std::integral_constant<int, 2>(), Most());
  return few ? launch(std::integral_constant<int, 1>(), Few()) : launch(std::integral_constant<int, 1>(), Most());
}

}  // namespace

bool IsNarrow(const ConvShape& shape) {
  constexpr int64_t kMostRows = int64_t{1} << 30;
  return shape.filters > 0 && shape.filters <= kBlockThreads && shape.filter_elements() > 0 &&
         shape.filter_elements() <= kMost && PixelsUnder(shape, 1) <= kSharedFloats &&
         shape.input.elements() < kMostRows && shape.output().elements() < kMostRows;
}

cudaError_t LaunchNarrowConvolution(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                                    const float* filters, const float* bias, Elements y) {
  if (examples == 0) return cudaSuccess;
  return WithType(y.type, [&](auto type) {
    using T = decltype(type);
    return WithSizes(shape, y.data, [&](auto a_thread, auto most) {
      const Bands bands = MakeBands(shape, examples, a_thread);
      const int64_t blocks = std::min(bands.count, kOutputBlocks);
      return Launch(stream, dim3(static_cast<unsigned>(blocks)), kBlockThreads,
                    NarrowConvolutionKernel<T, a_thread, most>, MakeGeometry(shape.input, shape.window), bands,
                    x.As<T>(), filters, bias, y.As<T>());
    });
  });
}

int64_t NarrowFilterGradientScratch(const ConvShape& shape, int64_t examples) {
  const int64_t blocks = SumBlocks(shape, examples), columns = shape.filters * shape.filter_elements();
  return blocks * columns + ColumnSumScratch<1>(blocks, columns);
}

cudaError_t LaunchNarrowFilterGradients(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                                        ConstElements dy, float* scratch, float* dfilters) {
  const int64_t columns = shape.filters * shape.filter_elements();
  int64_t blocks = 0;
  const cudaError_t error = WithType(dy.type, [&](auto type) {
    using T = decltype(type);
    return WithSizes(shape, dy.data, [&](auto a_thread, auto most) {
      const Bands bands = MakeBands(shape, examples, a_thread);
      blocks = std::min(bands.count, SumBlocks(shape, examples));
      if (blocks == 0) return cudaSuccess;
      return Launch(stream, dim3(static_cast<unsigned>(blocks)), kBlockThreads,
                    NarrowFilterGradientsKernel<T, a_thread, most>, MakeGeometry(shape.input, shape.window), bands,
                    x.As<T>(), dy.As<T>(), scratch);
    });
  });
  if (error != cudaSuccess) return error;
  return WithWidth<float>(columns, {scratch}, [&](auto width) {
    const Values<float, width> rows = {scratch, columns};
    return LaunchColumnSums<1>(stream, rows, blocks, columns, scratch + SumBlocks(shape, examples) * columns, dfilters);
  });
}

}  // namespace ballast
