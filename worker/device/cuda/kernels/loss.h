// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"

// Launchers of Device::Loss. Each row writes its loss and whether its output is right to scratch memory; a second
// kernel sums them.
namespace ballast {

struct LossCall {
  ConstElements outputs;
  int64_t rows;
  int64_t columns;
  const float* labels;
  // Null: not computed. Has the outputs' type and may be the outputs; multiplied by the scale before rounding.
  Elements gradient;
  float gradient_scale;
  // 2 * rows floats.
  float* scratch;
  // kLossTotals floats.
  float* totals;
};

// Loss of a row: log(sum_j exp(x_j)) - x_label, shifted by the row's maximum so that nothing overflows. NaN if the
// label is not a class.
cudaError_t LaunchSoftmaxCrossEntropy(cudaStream_t stream, const LossCall& call);
// Loss of a row of one column: (x - label)^2.
cudaError_t LaunchMeanSquaredError(cudaStream_t stream, const LossCall& call);
// Loss of a row of one column: log(1 + exp(w)) with w = x for label 0 and -x for label 1, computed as max(w, 0) + log(1
// + exp(-|x|)), so that nothing overflows. NaN if the label is neither.
cudaError_t LaunchSigmoidCrossEntropy(cudaStream_t stream, const LossCall& call);

}  // namespace ballast
