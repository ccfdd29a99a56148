// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"

// Launchers of DotInteraction and DotInteractionBackward.
namespace ballast {

// Rows of `vectors` vectors of `dim` elements. The matrices have any type, the same for all.
struct InteractionCall {
  int64_t rows;
  int64_t vectors;
  int64_t dim;
  ConstElements x;

  __host__ __device__ int64_t pairs() const { return vectors * (vectors - 1) / 2; }
};

cudaError_t LaunchDotInteraction(cudaStream_t stream, const InteractionCall& call, Elements y);
cudaError_t LaunchDotInteractionBackward(cudaStream_t stream, const InteractionCall& call, ConstElements dy,
                                         Elements dx);

}  // namespace ballast
