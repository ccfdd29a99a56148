// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"

// Launchers of the batch norm of NormalizationOperations, with the same contracts. Matrices are [rows, columns], all
// of one type in one call; vectors have `columns` floats.
namespace ballast {

struct BatchNormCall {
  int64_t rows;
  int64_t columns;
  ConstElements x;
  const float* scale;
  const float* offset;
  // Written by the forward pass, read by the backward pass.
  float* mean;
  float* inverse_stddev;
  // BatchNormScratch floats.
  float* scratch;
};

int64_t BatchNormScratch(int64_t rows, int64_t columns);

struct RunningStatistics {
  float epsilon;
  float momentum;
  float* mean;
  float* variance;
};

cudaError_t LaunchBatchNorm(cudaStream_t stream, const BatchNormCall& call, const RunningStatistics& running,
                            Elements y);
cudaError_t LaunchBatchNormInference(cudaStream_t stream, const BatchNormCall& call, const RunningStatistics& running,
                                     Elements y);

struct BatchNormGradients {
  ConstElements dy;
  float* dscale;
  float* doffset;
  // Null: not computed.
  Elements dx;
};

cudaError_t LaunchBatchNormBackward(cudaStream_t stream, const BatchNormCall& call,
                                    const BatchNormGradients& gradients);

}  // namespace ballast
