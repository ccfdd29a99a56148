// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// Launchers of NormalizationOperations' batch norm, whose contracts hold here. Matrices are [rows, columns], vectors
// have `columns` elements.
namespace ballast {

struct BatchNormCall {
  int64_t rows;
  int64_t columns;
  const float* x;
  const float* scale;
  const float* offset;
  // Written, and by the backward pass read.
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

cudaError_t LaunchBatchNorm(cudaStream_t stream, const BatchNormCall& call, const RunningStatistics& running, float* y);
cudaError_t LaunchBatchNormInference(cudaStream_t stream, const BatchNormCall& call, const RunningStatistics& running,
                                     float* y);

struct BatchNormGradients {
  const float* dy;
  float* dscale;
  float* doffset;
  // Null: not wanted.
  float* dx;
};

cudaError_t LaunchBatchNormBackward(cudaStream_t stream, const BatchNormCall& call,
                                    const BatchNormGradients& gradients);

}  // namespace ballast
