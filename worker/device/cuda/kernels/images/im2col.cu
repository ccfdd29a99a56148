// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/images/im2col.h"
#include "worker/device/cuda/kernels/images/image_geometry.h"
#include "worker/device/cuda/kernels/launch.h"

namespace ballast {
namespace {

// Block b writes the windows of output row b % out_height of image b / out_height.
template <typename T>
__global__ void ImagesToColumnsKernel(Geometry g, const T* x, T* columns) {
  const int64_t example = blockIdx.x / g.out_height;
  const int top = static_cast<int>(blockIdx.x % g.out_height) * g.vertical_stride - g.vertical_padding;
  const int window_elements = g.window_height * g.window_width * g.channels;
  const int row_elements = g.out_width * window_elements;
  const T* const image = x + example * g.height * g.width * g.channels;
  T* const out = columns + static_cast<int64_t>(blockIdx.x) * row_elements;
  for (int e = threadIdx.x; e < row_elements; e += blockDim.x) {
    const int place = e / window_elements;
    const int in_window = e % window_elements;
    const int pixel = in_window / g.channels;
    const int row = top + pixel / g.window_width;
    const int column = place * g.horizontal_stride - g.horizontal_padding + pixel % g.window_width;
    const bool inside = row >= 0 && row < g.height && column >= 0 && column < g.width;
    out[e] = inside ? image[static_cast<int64_t>(row * g.width + column) * g.channels + in_window % g.channels]
                    : static_cast<T>(0.0f);
  }
}

// Block b gathers row b % height of image b / height.
template <typename T>
__global__ void ColumnsToImagesKernel(Geometry g, const T* columns, T* x) {
  const int64_t example = blockIdx.x / g.height;
  const int row = static_cast<int>(blockIdx.x % g.height);
  const int row_elements = g.width * g.channels;
  const int window_elements = g.window_height * g.window_width * g.channels;
  const Range is = PlacesOver(row, g.vertical_padding, g.window_height, g.vertical_stride, g.out_height);
  T* const out = x + static_cast<int64_t>(blockIdx.x) * row_elements;
  for (int e = threadIdx.x; e < row_elements; e += blockDim.x) {
    const int column = e / g.channels;
    const int channel = e % g.channels;
    const Range js = PlacesOver(column, g.horizontal_padding, g.window_width, g.horizontal_stride, g.out_width);
    float sum = 0.0f;
    for (int i = is.begin; i < is.end; ++i) {
      const int window_row = row - (i * g.vertical_stride - g.vertical_padding);
      for (int j = js.begin; j < js.end; ++j) {
        const int window_column = column - (j * g.horizontal_stride - g.horizontal_padding);
        const int64_t place = (example * g.out_height + i) * g.out_width + j;
        const int in_window = (window_row * g.window_width + window_column) * g.channels + channel;
        sum += static_cast<float>(columns[place * window_elements + in_window]);
      }
    }
    out[e] = static_cast<T>(sum);
  }
}

}  // namespace

cudaError_t LaunchImagesToColumns(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                                  Elements columns) {
  const ImageShape out = shape.output();
  const int64_t rows = examples * out.height;
  if (rows == 0) return cudaSuccess;
  if (const cudaError_t error = CheckRows(rows, out.width * shape.filter_elements()); error != cudaSuccess)
    return error;
  return WithType(x.type, [&](auto type) {
    using T = decltype(type);
    return Launch(stream, dim3(static_cast<unsigned>(rows)), kBlockThreads, ImagesToColumnsKernel<T>,
                  MakeGeometry(shape.input, shape.window), x.As<T>(), columns.As<T>());
  });
}

cudaError_t LaunchColumnsToImages(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements columns,
                                  Elements x) {
  const int64_t rows = examples * shape.input.height;
  if (rows == 0) return cudaSuccess;
  if (const cudaError_t error = CheckRows(rows, shape.input.width * shape.input.channels); error != cudaSuccess) {
    return error;
  }
  return WithType(x.type, [&](auto type) {
    using T = decltype(type);
    return Launch(stream, dim3(static_cast<unsigned>(rows)), kBlockThreads, ColumnsToImagesKernel<T>,
                  MakeGeometry(shape.input, shape.window), columns.As<T>(), x.As<T>());
  });
}

}  // namespace ballast
