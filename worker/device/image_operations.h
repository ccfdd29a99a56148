// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "worker/device/device_types.h"
#include "worker/device/image_shape.h"

namespace ballast {

// A device's operations on batches of images: x and dx are [examples, shape.input.elements()], y and dy
// [examples, shape.output().elements()]. The window fits the image (Fits). Contract as device.h's.
class ImageOperations {
 public:
  virtual ~ImageOperations() = default;

  // y[p][f] = bias[f] + sum over the window at place p of x * filter f, 0 in the padding: a cross-correlation, as
  // networks use it. No bias where it is null.
  virtual void Convolve(const ConvShape& shape, Matrix x, const Buffer& filters, const Buffer* bias, Matrix y) = 0;
  // The gradient by the images.
  virtual void ConvolveBackwardData(const ConvShape& shape, Matrix dy, const Buffer& filters, Matrix dx) = 0;
  // The gradients by the filters and, where `dbias` is not null, by the bias. Zeros where there are no examples.
  virtual void ConvolveBackwardFilters(const ConvShape& shape, Matrix x, Matrix dy, Buffer& dfilters,
                                       Buffer* dbias) = 0;

  // y = the largest in the window, padding left out; NaN where one is in it.
  virtual void MaxPool(const PoolShape& shape, Matrix x, Matrix y) = 0;
  // dx = the sum of dy over the windows whose largest it is, of equals the first in the window's row-major order (the
  // first NaN, where there is one). Finds it in x again, so that forward need not keep it.
  virtual void MaxPoolBackward(const PoolShape& shape, Matrix x, Matrix dy, Matrix dx) = 0;

  // y = the mean of those in the window that are not padding.
  virtual void AveragePool(const PoolShape& shape, Matrix x, Matrix y) = 0;
  // dx = the sum of dy / n over the windows that it is in, n as above.
  virtual void AveragePoolBackward(const PoolShape& shape, Matrix dy, Matrix dx) = 0;
};

}  // namespace ballast
