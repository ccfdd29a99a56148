// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "worker/device/image_shape.h"

// The CPU device's poolings of `examples` images, with the contracts of ImageOperations. Memory of one call does not
// overlap.
namespace ballast {

void MaxPool(const PoolShape& shape, int64_t examples, const float* x, float* y);
void MaxPoolBackward(const PoolShape& shape, int64_t examples, const float* x, const float* dy, float* dx);
void AveragePool(const PoolShape& shape, int64_t examples, const float* x, float* y);
void AveragePoolBackward(const PoolShape& shape, int64_t examples, const float* dy, float* dx);

}  // namespace ballast
