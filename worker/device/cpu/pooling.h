// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "worker/device/image_shape.h"

// The CPU device's poolings of `examples` images, with the contracts of ImageOperations. Memory of one call does not
// overlap.
namespace ballast {

// `positions` may be null. Its memory holds the number of the maximum among its window's elements that are not padding,
// for each element of y in turn, in shape.position_bytes() bytes.
void MaxPool(const PoolShape& shape, int64_t examples, const float* x, void* positions, float* y);
void MaxPoolBackward(const PoolShape& shape, int64_t examples, const void* positions, const float* dy, float* dx);
void AveragePool(const PoolShape& shape, int64_t examples, const float* x, float* y);
void AveragePoolBackward(const PoolShape& shape, int64_t examples, const float* dy, float* dx);

}  // namespace ballast
