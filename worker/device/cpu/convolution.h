// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "worker/device/image_shape.h"

namespace ballast {

// The CPU device's convolutions of `examples` images, with the formulas and layouts of ImageOperations. Memory of one
// call does not overlap. Thread safety: none.
class Convolution {
 public:
  virtual ~Convolution() = default;

  // Name of the library, for people.
  virtual const char* name() const = 0;
  // `bias` may be null.
  virtual void Forward(const ConvShape& shape, int64_t examples, const float* x, const float* filters,
                       const float* bias, float* y) = 0;
  virtual void BackwardData(const ConvShape& shape, int64_t examples, const float* dy, const float* filters,
                            float* dx) = 0;
  // `dbias` may be null.
  virtual void BackwardFilters(const ConvShape& shape, int64_t examples, const float* x, const float* dy,
                               float* dfilters, float* dbias) = 0;
};

}  // namespace ballast
