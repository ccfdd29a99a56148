// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"
#include "worker/device/image_shape.h"

// Expands `examples` images for a convolution as a product: a matrix [examples * positions, filter_elements] whose
// rows are windows, 0 in the padding. Images and matrix have one type.
namespace ballast {

cudaError_t LaunchImagesToColumns(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                                  Elements columns);
// The transpose: each element of x becomes the sum of its copies in all windows.
cudaError_t LaunchColumnsToImages(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements columns,
                                  Elements x);

}  // namespace ballast
