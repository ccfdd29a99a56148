// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"
#include "worker/device/image_shape.h"

// Convolutions of images with few channels, as the first layer of a network has: with at most 27 products for each
// output, which is a window of 3 x 3 pixels of 3 channels. They are bound by the memory that the outputs take, while
// the kernels of libraries for such shapes leave most of a GPU idle. Operands are not rounded; sums are fp32, always
// in the same order and without atomics, so that results are bitwise repeatable.
namespace ballast {

// Returns whether the launchers take this shape.
bool IsNarrow(const ConvShape& shape);

// y = x * filters + bias. Images and outputs have one type; `bias` may be null.
cudaError_t LaunchNarrowConvolution(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                                    const float* filters, const float* bias, Elements y);

// Floats of scratch memory that LaunchNarrowFilterGradients needs.
int64_t NarrowFilterGradientScratch(const ConvShape& shape, int64_t examples);

// The gradients of the filters. x and dy have one type. Without examples they are 0.
cudaError_t LaunchNarrowFilterGradients(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                                        ConstElements dy, float* scratch, float* dfilters);

}  // namespace ballast
