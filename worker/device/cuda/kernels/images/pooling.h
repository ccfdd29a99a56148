// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"
#include "worker/device/image_shape.h"

// Launchers of the poolings of ImageOperations, with the same contracts. Each gradient element gathers from the
// windows that contain it, without atomics, so that results are bitwise repeatable. All matrices of one call have one
// type.
namespace ballast {

// `positions` may be null. It holds the position of the maximum in its window, padding included, for each element of y
// in turn, in shape.position_bytes() bytes.
cudaError_t LaunchMaxPool(cudaStream_t stream, const PoolShape& shape, int64_t examples, ConstElements x,
                          void* positions, Elements y);
cudaError_t LaunchMaxPoolBackward(cudaStream_t stream, const PoolShape& shape, int64_t examples, const void* positions,
                                  ConstElements dy, Elements dx);
cudaError_t LaunchAveragePool(cudaStream_t stream, const PoolShape& shape, int64_t examples, ConstElements x,
                              Elements y);
cudaError_t LaunchAveragePoolBackward(cudaStream_t stream, const PoolShape& shape, int64_t examples, ConstElements dy,
                                      Elements dx);

}  // namespace ballast
