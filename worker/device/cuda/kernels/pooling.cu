// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/image_geometry.h"
#include "worker/device/cuda/kernels/launch.h"
#include "worker/device/cuda/kernels/pooling.h"

namespace ballast {
namespace {

// The pixels that window position (i, j) covers.
struct Cover {
  Range rows, columns;

  __device__ Cover(const Geometry& g, int i, int j)
      : rows(Covered(i * g.vertical_stride - g.vertical_padding, g.window_height, g.height)),
        columns(Covered(j * g.horizontal_stride - g.horizontal_padding, g.window_width, g.width)) {}

  __device__ int pixels() const { return (rows.end - rows.begin) * (columns.end - columns.begin); }
};

// The covered pixel with the largest value of a channel: the first of equal ones, or the first NaN, if any.
template <typename T>
__device__ int LargestPixel(const Geometry& g, const Cover& cover, const T* image, int channel) {
  int best = cover.rows.begin * g.width + cover.columns.begin;
  float largest = image[static_cast<int64_t>(best) * g.channels + channel];
  for (int r = cover.rows.begin; r < cover.rows.end; ++r) {
    for (int c = cover.columns.begin; c < cover.columns.end; ++c) {
      const int pixel = r * g.width + c;
      const float value = image[static_cast<int64_t>(pixel) * g.channels + channel];
      if (value > largest || (value != value && largest == largest)) {
        largest = value;
        best = pixel;
      }
    }
  }
  return best;
}

// Handles one output row: block b is row b % out_height of image b / out_height.
template <typename T, typename Position>
__global__ void MaxPoolKernel(Geometry g, const T* x, Position* positions, T* y) {
  const int64_t example = blockIdx.x / g.out_height;
  const int i = static_cast<int>(blockIdx.x % g.out_height);
  const int row_elements = g.out_width * g.channels;
  const T* const image = x + example * g.height * g.width * g.channels;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * row_elements;
  const int top = i * g.vertical_stride - g.vertical_padding;
  for (int e = threadIdx.x; e < row_elements; e += blockDim.x) {
    const int j = e / g.channels, channel = e % g.channels;
    const int pixel = LargestPixel(g, Cover(g, i, j), image, channel);
    y[first + e] = image[static_cast<int64_t>(pixel) * g.channels + channel];
    if (positions == nullptr) continue;
    const int left = j * g.horizontal_stride - g.horizontal_padding;
    positions[first + e] = static_cast<Position>((pixel / g.width - top) * g.window_width + pixel % g.width - left);
  }
}

// Handles one input row: block b is row b % height of image b / height.
template <typename T, typename Position>
__global__ void MaxPoolBackwardKernel(Geometry g, const Position* positions, const T* dy, T* dx) {
  const int64_t example = blockIdx.x / g.height;
  const int row = static_cast<int>(blockIdx.x % g.height);
  const int row_elements = g.width * g.channels;
  const int64_t outputs = example * g.out_height * g.out_width * g.channels;
  T* const out = dx + static_cast<int64_t>(blockIdx.x) * row_elements;
  const Range is = PlacesOver(row, g.vertical_padding, g.window_height, g.vertical_stride, g.out_height);
  for (int e = threadIdx.x; e < row_elements; e += blockDim.x) {
    const int column = e / g.channels;
    const int channel = e % g.channels;
    const Range js = PlacesOver(column, g.horizontal_padding, g.window_width, g.horizontal_stride, g.out_width);
    float sum = 0.0f;
    for (int i = is.begin; i < is.end; ++i) {
      for (int j = js.begin; j < js.end; ++j) {
        const int64_t at = outputs + static_cast<int64_t>(i * g.out_width + j) * g.channels + channel;
        const int r = row - (i * g.vertical_stride - g.vertical_padding);
        const int c = column - (j * g.horizontal_stride - g.horizontal_padding);
        if (positions[at] == static_cast<Position>(r * g.window_width + c)) sum += static_cast<float>(dy[at]);
      }
    }
    out[e] = static_cast<T>(sum);
  }
}

template <typename T>
__global__ void AveragePoolKernel(Geometry g, const T* x, T* y) {
  const int64_t example = blockIdx.x / g.out_height;
  const int i = static_cast<int>(blockIdx.x % g.out_height);
  const int row_elements = g.out_width * g.channels;
  const T* const image = x + example * g.height * g.width * g.channels;
  T* const out = y + static_cast<int64_t>(blockIdx.x) * row_elements;
  for (int e = threadIdx.x; e < row_elements; e += blockDim.x) {
    const Cover cover(g, i, e / g.channels);
    float sum = 0.0f;
    for (int r = cover.rows.begin; r < cover.rows.end; ++r) {
      for (int c = cover.columns.begin; c < cover.columns.end; ++c) {
        sum += static_cast<float>(image[static_cast<int64_t>(r * g.width + c) * g.channels + e % g.channels]);
      }
    }
    out[e] = static_cast<T>(sum / static_cast<float>(cover.pixels()));
  }
}

template <typename T>
__global__ void AveragePoolBackwardKernel(Geometry g, const T* dy, T* dx) {
  const int64_t example = blockIdx.x / g.height;
  const int row = static_cast<int>(blockIdx.x % g.height);
  const int row_elements = g.width * g.channels;
  const T* const gradient = dy + example * g.out_height * g.out_width * g.channels;
  T* const out = dx + static_cast<int64_t>(blockIdx.x) * row_elements;
  const Range is = PlacesOver(row, g.vertical_padding, g.window_height, g.vertical_stride, g.out_height);
  for (int e = threadIdx.x; e < row_elements; e += blockDim.x) {
    const Range js = PlacesOver(e / g.channels, g.horizontal_padding, g.window_width, g.horizontal_stride, g.out_width);
    float sum = 0.0f;
    for (int i = is.begin; i < is.end; ++i) {
      for (int j = js.begin; j < js.end; ++j) {
        const T share = gradient[static_cast<int64_t>(i * g.out_width + j) * g.channels + e % g.channels];
        sum += static_cast<float>(share) / static_cast<float>(Cover(g, i, j).pixels());
      }
    }
    out[e] = static_cast<T>(sum);
  }
}

// Launches a kernel with a block for each of `rows` rows.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchRows(cudaStream_t stream, int64_t rows, int64_t row_elements, void (*kernel)(Parameters...),
                       Arguments... arguments) {
  if (rows == 0 || row_elements == 0) return cudaSuccess;
  if (const cudaError_t error = CheckRows(rows, row_elements); error != cudaSuccess) return error;
  return Launch(stream, dim3(static_cast<unsigned>(rows)), kBlockThreads, kernel, arguments...);
}

// Calls launch(P()), where P is the type of a position, and returns its result.
template <typename LaunchPosition>
cudaError_t WithPosition(const PoolShape& shape, LaunchPosition launch) {
  return shape.position_bytes() == 1 ? launch(uint8_t()) : launch(uint32_t());
}

}  // namespace

cudaError_t LaunchMaxPool(cudaStream_t stream, const PoolShape& shape, int64_t examples, ConstElements x,
                          void* positions, Elements y) {
  const ImageShape out = shape.output();
  return WithType(y.type, [&](auto type) {
    using T = decltype(type);
    return WithPosition(shape, [&](auto position) {
      using Position = decltype(position);
      return LaunchRows(stream, examples * out.height, out.width * out.channels, MaxPoolKernel<T, Position>,
                        MakeGeometry(shape.input, shape.window), x.As<T>(), static_cast<Position*>(positions),
                        y.As<T>());
    });
  });
}

cudaError_t LaunchMaxPoolBackward(cudaStream_t stream, const PoolShape& shape, int64_t examples, const void* positions,
                                  ConstElements dy, Elements dx) {
  const ImageShape& in = shape.input;
  return WithType(dx.type, [&](auto type) {
    using T = decltype(type);
    return WithPosition(shape, [&](auto position) {
      using Position = decltype(position);
      return LaunchRows(stream, examples * in.height, in.width * in.channels, MaxPoolBackwardKernel<T, Position>,
                        MakeGeometry(in, shape.window), static_cast<const Position*>(positions), dy.As<T>(),
                        dx.As<T>());
    });
  });
}

cudaError_t LaunchAveragePool(cudaStream_t stream, const PoolShape& shape, int64_t examples, ConstElements x,
                              Elements y) {
  const ImageShape out = shape.output();
  return WithType(y.type, [&](auto type) {
    using T = decltype(type);
    return LaunchRows(stream, examples * out.height, out.width * out.channels, AveragePoolKernel<T>,
                      MakeGeometry(shape.input, shape.window), x.As<T>(), y.As<T>());
  });
}

cudaError_t LaunchAveragePoolBackward(cudaStream_t stream, const PoolShape& shape, int64_t examples, ConstElements dy,
                                      Elements dx) {
  const ImageShape& in = shape.input;
  return WithType(dx.type, [&](auto type) {
    using T = decltype(type);
    return LaunchRows(stream, examples * in.height, in.width * in.channels, AveragePoolBackwardKernel<T>,
                      MakeGeometry(in, shape.window), dy.As<T>(), dx.As<T>());
  });
}

}  // namespace ballast
