// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/images/image_geometry.h"
#include "worker/device/cuda/kernels/images/image_rows.h"
#include "worker/device/cuda/kernels/images/pooling.h"
#include "worker/device/cuda/kernels/launch.h"
#include "worker/device/cuda/kernels/pack.h"

namespace ballast {
namespace {

// The pixels that a window covers, whose upper left corner, padding included, is (top, left).
struct Cover {
  int top, left;
  Range rows, columns;

  __device__ Cover(const Geometry& g, int i, int j)
      : top(i * g.vertical_stride - g.vertical_padding),
        left(j * g.horizontal_stride - g.horizontal_padding),
        rows(Covered(top, g.window_height, g.height)),
        columns(Covered(left, g.window_width, g.width)) {}

  __device__ int pixels() const { return (rows.end - rows.begin) * (columns.end - columns.begin); }
};

// Largest value in a window and its position there, padding included, for each of W channels: the first of equal
// values, or the first NaN, if any.
template <int W>
struct Largest {
  float value[W];
  int position[W];

  template <typename T>
  __device__ void Find(const Geometry& g, const Cover& cover, const T* channels) {
    bool first = true;
    for (int r = cover.rows.begin; r < cover.rows.end; ++r) {
      for (int c = cover.columns.begin; c < cover.columns.end; ++c) {
        const Pack<T, W> pixel = LoadPack<W>(channels + static_cast<int64_t>(r * g.width + c) * g.channels);
        const int at = (r - cover.top) * g.window_width + c - cover.left;
        for (int w = 0; w < W; ++w) {
          const float other = static_cast<float>(pixel.values[w]);
          if (first || other > value[w] || (other != other && value[w] == value[w])) {
            value[w] = other;
            position[w] = at;
          }
        }
        first = false;
      }
    }
  }
};

template <typename T, typename Position, int W>
__global__ void MaxPoolKernel(Geometry g, Rows rows, const T* x, Position* positions, T* y) {
  for (int item = threadIdx.x; item < rows.Items(); item += blockDim.x) {
    const Place<W> place(rows, item);
    const int64_t example = place.row / g.out_height;
    const T* const image = x + example * g.height * g.width * g.channels + place.channel;
    Largest<W> largest;
    largest.Find(g, Cover(g, static_cast<int>(place.row % g.out_height), place.column), image);
    Pack<T, W> values;
    Pack<Position, W> found;
    for (int w = 0; w < W; ++w) {
      values.values[w] = static_cast<T>(largest.value[w]);
      found.values[w] = static_cast<Position>(largest.position[w]);
    }
    StorePack(values, y + place.element);
    if (positions != nullptr) StorePack(found, positions + place.element);
  }
}

template <typename T, typename Position, int W>
__global__ void MaxPoolBackwardKernel(Geometry g, Rows rows, const Position* positions, const T* dy, T* dx) {
  for (int item = threadIdx.x; item < rows.Items(); item += blockDim.x) {
    const Place<W> place(rows, item);
    const int row = static_cast<int>(place.row % g.height);
    const int64_t outputs = place.row / g.height * g.out_height * g.out_width * g.channels + place.channel;
    const Range is = PlacesOver(row, g.vertical_padding, g.window_height, g.vertical_stride, g.out_height);
    const Range js = PlacesOver(place.column, g.horizontal_padding, g.window_width, g.horizontal_stride, g.out_width);
    float sums[W] = {};
    for (int i = is.begin; i < is.end; ++i) {
      for (int j = js.begin; j < js.end; ++j) {
        const int64_t at = outputs + static_cast<int64_t>(i * g.out_width + j) * g.channels;
        const Pack<Position, W> found = LoadPack<W>(positions + at);
        const Pack<T, W> gradients = LoadPack<W>(dy + at);
        const int r = row - (i * g.vertical_stride - g.vertical_padding);
        const int c = place.column - (j * g.horizontal_stride - g.horizontal_padding);
        const Position here = static_cast<Position>(r * g.window_width + c);
        for (int w = 0; w < W; ++w) {
          if (found.values[w] == here) sums[w] += static_cast<float>(gradients.values[w]);
        }
      }
    }
    StorePack(Rounded<T, W>(sums), dx + place.element);
  }
}

template <typename T, int W>
__global__ void AveragePoolKernel(Geometry g, Rows rows, const T* x, T* y) {
  for (int item = threadIdx.x; item < rows.Items(); item += blockDim.x) {
    const Place<W> place(rows, item);
    const int64_t example = place.row / g.out_height;
    const T* const image = x + example * g.height * g.width * g.channels + place.channel;
    const Cover cover(g, static_cast<int>(place.row % g.out_height), place.column);
    float sums[W] = {};
    for (int r = cover.rows.begin; r < cover.rows.end; ++r) {
      for (int c = cover.columns.begin; c < cover.columns.end; ++c) {
        const Pack<T, W> pixel = LoadPack<W>(image + static_cast<int64_t>(r * g.width + c) * g.channels);
        for (int w = 0; w < W; ++w) sums[w] += static_cast<float>(pixel.values[w]);
      }
    }
    for (int w = 0; w < W; ++w) sums[w] /= static_cast<float>(cover.pixels());
    StorePack(Rounded<T, W>(sums), y + place.element);
  }
}

template <typename T, int W>
__global__ void AveragePoolBackwardKernel(Geometry g, Rows rows, const T* dy, T* dx) {
  for (int item = threadIdx.x; item < rows.Items(); item += blockDim.x) {
    const Place<W> place(rows, item);
    const int row = static_cast<int>(place.row % g.height);
    const T* const gradient = dy + place.row / g.height * g.out_height * g.out_width * g.channels + place.channel;
    const Range is = PlacesOver(row, g.vertical_padding, g.window_height, g.vertical_stride, g.out_height);
    const Range js = PlacesOver(place.column, g.horizontal_padding, g.window_width, g.horizontal_stride, g.out_width);
    float sums[W] = {};
    for (int i = is.begin; i < is.end; ++i) {
      for (int j = js.begin; j < js.end; ++j) {
        const Pack<T, W> share = LoadPack<W>(gradient + static_cast<int64_t>(i * g.out_width + j) * g.channels);
        const float pixels = static_cast<float>(Cover(g, i, j).pixels());
        for (int w = 0; w < W; ++w) sums[w] += static_cast<float>(share.values[w]) / pixels;
      }
    }
    StorePack(Rounded<T, W>(sums), dx + place.element);
  }
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
      return WithWidth<T>(out.channels, {x.data, positions, y.data}, [&](auto width) {
        return LaunchRows(stream, examples * out.height, out.width, out.channels, width,
                          MaxPoolKernel<T, Position, width>, MakeGeometry(shape.input, shape.window), x.As<T>(),
                          static_cast<Position*>(positions), y.As<T>());
      });
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
      return WithWidth<T>(in.channels, {positions, dy.data, dx.data}, [&](auto width) {
        return LaunchRows(stream, examples * in.height, in.width, in.channels, width,
                          MaxPoolBackwardKernel<T, Position, width>, MakeGeometry(in, shape.window),
                          static_cast<const Position*>(positions), dy.As<T>(), dx.As<T>());
      });
    });
  });
}

cudaError_t LaunchAveragePool(cudaStream_t stream, const PoolShape& shape, int64_t examples, ConstElements x,
                              Elements y) {
  const ImageShape out = shape.output();
  return WithType(y.type, [&](auto type) {
    using T = decltype(type);
    return WithWidth<T>(out.channels, {x.data, y.data}, [&](auto width) {
      return LaunchRows(stream, examples * out.height, out.width, out.channels, width, AveragePoolKernel<T, width>,
                        MakeGeometry(shape.input, shape.window), x.As<T>(), y.As<T>());
    });
  });
}

cudaError_t LaunchAveragePoolBackward(cudaStream_t stream, const PoolShape& shape, int64_t examples, ConstElements dy,
                                      Elements dx) {
  const ImageShape& in = shape.input;
  return WithType(dx.type, [&](auto type) {
    using T = decltype(type);
    return WithWidth<T>(in.channels, {dy.data, dx.data}, [&](auto width) {
      return LaunchRows(stream, examples * in.height, in.width, in.channels, width, AveragePoolBackwardKernel<T, width>,
                        MakeGeometry(in, shape.window), dy.As<T>(), dx.As<T>());
    });
  });
}

}  // namespace ballast
