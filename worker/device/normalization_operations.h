// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "worker/device/device_types.h"

namespace ballast {

// Scale and offset after a normalization: a normalized value of column j becomes scale[j] * value + offset[j].
struct Affine {
  const Buffer& scale;
  const Buffer& offset;
};

// The gradients with respect to an Affine.
struct AffineGradient {
  Buffer& scale;
  Buffer& offset;
};

// Mean and variance per column. With running statistics, inference divides by sqrt(variance + epsilon).
struct ColumnStatistics {
  Buffer& mean;
  Buffer& variance;
};

// Statistics per column of one batch, kept for the backward pass. inverse_stddev = 1 / sqrt(variance + epsilon).
struct SavedStatistics {
  Buffer& mean;
  Buffer& inverse_stddev;
};

// Constants of a batch norm. A running statistic becomes (1 - momentum) * itself + momentum * the batch's.
struct BatchNormRates {
  // Above 0.
  float epsilon = 1e-5f;
  // In (0, 1].
  float momentum = 0.1f;
};

// A device's normalizations (Ioffe and Szegedy, 2015; Ba, Kiros and Hinton, 2016). x, y, dx and dy are [rows,
// columns]; each buffer in the structs has at least `columns` elements. dx and dy must not overlap. The contract of
// class Device applies.
class NormalizationOperations {
 public:
  virtual ~NormalizationOperations() = default;

  // y = affine of (x - mean) / sqrt(variance + epsilon), with the column's mean and biased (1 / rows) variance over
  // the rows. Saves both, and updates the running statistics with them, using the unbiased variance (times rows /
  // (rows - 1), rows at least 2). Without rows the running statistics are unchanged and the saved ones are 0.
  virtual void BatchNorm(const BatchNormRates& rates, Matrix x, const Affine& affine, const SavedStatistics& saved,
                         const ColumnStatistics& running, Matrix y) = 0;
  // y = affine of (x - running mean) / sqrt(running variance + epsilon).
  virtual void BatchNormInference(float epsilon, Matrix x, const Affine& affine, const ColumnStatistics& running,
                                  Matrix y) = 0;
  // The gradients of BatchNorm. Writes no dx if `dx` is null. Does not read affine.offset. The gradients of the
  // affine are 0 without rows.
  virtual void BatchNormBackward(Matrix x, Matrix dy, const Affine& affine, const SavedStatistics& saved,
                                 const AffineGradient& gradient, const Matrix* dx) = 0;

  // y = affine of (x - mean) / sqrt(variance + epsilon), with the row's mean and biased variance over its columns.
  virtual void LayerNorm(float epsilon, Matrix x, const Affine& affine, Matrix y) = 0;
  // The gradients of LayerNorm, like BatchNormBackward. Computes the statistics of the rows again.
  virtual void LayerNormBackward(float epsilon, Matrix x, Matrix dy, const Affine& affine,
                                 const AffineGradient& gradient, const Matrix* dx) = 0;
};

}  // namespace ballast
