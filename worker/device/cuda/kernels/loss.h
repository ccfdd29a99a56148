// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"

// The losses of Device::Loss. Each row's loss and whether its output is right go to scratch memory, and are then
// summed.
namespace ballast {

struct LossCall {
  ConstElements outputs;
  int64_t rows;
  int64_t columns;
  const float* labels;
  // Null: not wanted. Of the outputs' type, and may be they; multiplied by the scale before it is rounded.
  Elements gradient;
  float gradient_scale;
  // 2 * rows floats.
  float* scratch;
  // kLossTotals floats.
  float* totals;
};

// Of a row: log(sum_j exp(x_j)) - x_label, shifted by the row's maximum so that nothing overflows. NaN where the label
// is no class.
cudaError_t LaunchSoftmaxCrossEntropy(cudaStream_t stream, const LossCall& call);
// Of a row of one column: (x - label)^2.
cudaError_t LaunchMeanSquaredError(cudaStream_t stream, const LossCall& call);

}  // namespace ballast
