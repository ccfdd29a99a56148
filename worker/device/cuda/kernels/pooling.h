// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"
#include "worker/device/image_shape.h"

// Launchers of ImageOperations' poolings, whose contracts hold here. A gradient's element gathers from the windows that
// it is in, so that nothing is added by atomics and the bits repeat. The matrices of one call are of one type.
namespace ballast {

cudaError_t LaunchMaxPool(cudaStream_t stream, const PoolShape& shape, int64_t examples, ConstElements x, Elements y);
cudaError_t LaunchMaxPoolBackward(cudaStream_t stream, const PoolShape& shape, int64_t examples, ConstElements x,
                                  ConstElements dy, Elements dx);
cudaError_t LaunchAveragePool(cudaStream_t stream, const PoolShape& shape, int64_t examples, ConstElements x,
                              Elements y);
cudaError_t LaunchAveragePoolBackward(cudaStream_t stream, const PoolShape& shape, int64_t examples, ConstElements dy,
                                      Elements dx);

}  // namespace ballast
