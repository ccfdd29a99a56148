// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/image_shape.h"

// A convolution as a product: the windows of `examples` images as a matrix [examples * places, filter_elements] whose
// rows are windows, 0 in the padding.
namespace ballast {

cudaError_t LaunchImagesToColumns(cudaStream_t stream, const ConvShape& shape, int64_t examples, const float* x,
                                  float* columns);
// The transpose: each element of x becomes the sum of what the windows hold of it.
cudaError_t LaunchColumnsToImages(cudaStream_t stream, const ConvShape& shape, int64_t examples, const float* columns,
                                  float* x);

}  // namespace ballast
