// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"
#include "worker/device/image_shape.h"

// A convolution as a product: the windows of `examples` images as a matrix [examples * places, filter_elements] whose
// rows are windows, 0 in the padding. Both of one type.
namespace ballast {

cudaError_t LaunchImagesToColumns(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                                  Elements columns);
// The transpose: each element of x becomes the sum of what the windows hold of it.
cudaError_t LaunchColumnsToImages(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements columns,
                                  Elements x);

}  // namespace ballast
