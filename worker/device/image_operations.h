// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "worker/device/device_types.h"
#include "worker/device/image_shape.h"

namespace ballast {

// A device's operations on batches of images: x and dx are [examples, shape.input.elements()], y and dy [examples,
// shape.output().elements()]. The window fits the image (see Fits). The contract of class Device applies.
class ImageOperations {
 public:
  virtual ~ImageOperations() = default;

  // y[p][f] = bias[f] + sum over the window at position p of x * filter f, with 0 in the padding: a
  // cross-correlation, as is usual in neural networks. A null bias adds nothing.
  virtual void Convolve(const ConvShape& shape, Matrix x, const Buffer& filters, const Buffer* bias, Matrix y) = 0;
  // The gradient with respect to the images.
  virtual void ConvolveBackwardData(const ConvShape& shape, Matrix dy, const Buffer& filters, Matrix dx) = 0;
  // The gradients with respect to the filters and, if `dbias` is not null, to the bias. Zeros without examples.
  virtual void ConvolveBackwardFilters(const ConvShape& shape, Matrix x, Matrix dy, Buffer& dfilters,
                                       Buffer* dbias) = 0;

  // y = the maximum of the window, without its padding; NaN if the window contains one. If `positions` is not null,
  // keeps there for MaxPoolBackward where in the windows the maxima are: among equals, the first in row-major order
  // (the first NaN, if any). It has shape.position_floats() floats for each example, in a format of the device's own.
  virtual void MaxPool(const PoolShape& shape, Matrix x, Buffer* positions, Matrix y) = 0;
  // dx = the sum of dy over the windows whose maximum it is, with the positions of the same examples.
  virtual void MaxPoolBackward(const PoolShape& shape, const Buffer& positions, Matrix dy, Matrix dx) = 0;

  // y = the mean of the window's elements that are not padding.
  virtual void AveragePool(const PoolShape& shape, Matrix x, Matrix y) = 0;
  // dx = the sum of dy / n over the windows that contain it; n is the number of elements that AveragePool averaged.
  virtual void AveragePoolBackward(const PoolShape& shape, Matrix dy, Matrix dx) = 0;
};

}  // namespace ballast
