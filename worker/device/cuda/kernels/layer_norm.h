// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"

// Launchers of the layer norm of NormalizationOperations, with the same contracts. Matrices are [rows, columns], all
// of one type in one call; vectors have `columns` floats.
namespace ballast {

struct LayerNormCall {
  int64_t rows;
  int64_t columns;
  float epsilon;
  ConstElements x;
  const float* scale;
};

cudaError_t LaunchLayerNorm(cudaStream_t stream, const LayerNormCall& call, const float* offset, Elements y);

struct LayerNormGradients {
  ConstElements dy;
  float* dscale;
  float* doffset;
  // Null: not computed.
  Elements dx;
  // LayerNormScratch floats.
  float* scratch;
};

int64_t LayerNormScratch(int64_t rows, int64_t columns);

cudaError_t LaunchLayerNormBackward(cudaStream_t stream, const LayerNormCall& call,
                                    const LayerNormGradients& gradients);

}  // namespace ballast
