// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// The CPU device's normalizations of [rows, columns], with the contracts of NormalizationOperations. dx may be null.
// Memory of one call does not overlap.
namespace ballast {

struct Rows {
  const float* x = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
};

struct ScaleAndOffset {
  const float* scale;
  const float* offset;
};

struct ScaleAndOffsetGradient {
  float* scale;
  float* offset;
};

struct Statistics {
  float* mean;
  // The variance; in saved statistics 1 / sqrt(variance + epsilon).
  float* spread;
};

struct RunningStatistics {
  Statistics values;
  float momentum;
};

void BatchNorm(float epsilon, const Rows& in, const ScaleAndOffset& affine, const Statistics& saved,
               const RunningStatistics& running, float* y);
void BatchNormInference(float epsilon, const Rows& in, const ScaleAndOffset& affine, const Statistics& running,
                        float* y);
void BatchNormBackward(const Rows& in, const float* dy, const ScaleAndOffset& affine, const Statistics& saved,
                       const ScaleAndOffsetGradient& gradient, float* dx);

void LayerNorm(float epsilon, const Rows& in, const ScaleAndOffset& affine, float* y);
void LayerNormBackward(float epsilon, const Rows& in, const float* dy, const ScaleAndOffset& affine,
                       const ScaleAndOffsetGradient& gradient, float* dx);

}  // namespace ballast
