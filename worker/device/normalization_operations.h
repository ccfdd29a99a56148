// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "worker/device/device_types.h"

namespace ballast {

// What a normalisation applies to a normalised value of column j: scale[j] * value + offset[j].
struct Affine {
  const Buffer& scale;
  const Buffer& offset;
};

// The gradients by an Affine.
struct AffineGradient {
  Buffer& scale;
  Buffer& offset;
};

// Of each column. In a batch norm's running statistics: inference divides by sqrt(variance + epsilon).
struct ColumnStatistics {
  Buffer& mean;
  Buffer& variance;
};

// Of each column of one batch: what its backward needs of forward. inverse_stddev = 1 / sqrt(variance + epsilon).
struct SavedStatistics {
  Buffer& mean;
  Buffer& inverse_stddev;
};

// How a batch norm computes. A running statistic becomes (1 - momentum) * itself + momentum * the batch's.
struct BatchNormRates {
  // Above 0.
  float epsilon = 1e-5f;
  // In (0, 1].
  float momentum = 0.1f;
};

// A device's normalisations (Ioffe and Szegedy, 2015; Ba, Kiros and Hinton, 2016). x, y, dx and dy are
// [rows, columns]; each buffer in the structs has at least `columns` elements. dx and dy may not overlap. Contract as
// device.h's.
class NormalizationOperations {
 public:
  virtual ~NormalizationOperations() = default;

  // y = affine of (x - mean) / sqrt(variance + epsilon), mean and (biased: 1 / rows) variance of the column over the
  // rows. Saves them, and moves the running ones by them, where the variance is taken as rows / (rows - 1) times as
  // large (rows of at least 2). Without rows the running ones stay as they are; the saved ones are 0.
  virtual void BatchNorm(const BatchNormRates& rates, Matrix x, const Affine& affine, const SavedStatistics& saved,
                         const ColumnStatistics& running, Matrix y) = 0;
  // y = affine of (x - running mean) / sqrt(running variance + epsilon).
  virtual void BatchNormInference(float epsilon, Matrix x, const Affine& affine, const ColumnStatistics& running,
                                  Matrix y) = 0;
  // The gradients of BatchNorm. `dx` is not written where it is null. affine.offset is not read. Gradients by the
  // affine are 0 where there are no rows.
  virtual void BatchNormBackward(Matrix x, Matrix dy, const Affine& affine, const SavedStatistics& saved,
                                 const AffineGradient& gradient, const Matrix* dx) = 0;

  // y = affine of (x - mean) / sqrt(variance + epsilon), mean and (biased) variance of the row over its columns.
  virtual void LayerNorm(float epsilon, Matrix x, const Affine& affine, Matrix y) = 0;
  // The gradients of LayerNorm, as BatchNormBackward's. Computes the rows' statistics again.
  virtual void LayerNormBackward(float epsilon, Matrix x, Matrix dy, const Affine& affine,
                                 const AffineGradient& gradient, const Matrix* dx) = 0;
};

}  // namespace ballast
