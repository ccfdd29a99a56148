// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// Launchers of NormalizationOperations' layer norm, whose contracts hold here. Matrices are [rows, columns], vectors
// have `columns` elements.
namespace ballast {

struct LayerNormCall {
  int64_t rows;
  int64_t columns;
  float epsilon;
  const float* x;
  const float* scale;
};

cudaError_t LaunchLayerNorm(cudaStream_t stream, const LayerNormCall& call, const float* offset, float* y);

struct LayerNormGradients {
  const float* dy;
  float* dscale;
  float* doffset;
  // Null: not wanted.
  float* dx;
  // LayerNormScratch floats.
  float* scratch;
};

int64_t LayerNormScratch(int64_t rows, int64_t columns);

cudaError_t LaunchLayerNormBackward(cudaStream_t stream, const LayerNormCall& call,
                                    const LayerNormGradients& gradients);

}  // namespace ballast
