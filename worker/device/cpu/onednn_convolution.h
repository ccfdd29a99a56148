// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "worker/device/cpu/convolution.h"

namespace ballast {

// Uses oneDNN's direct convolutions, whose code is generated at the first use of a shape. Shapes for which oneDNN has
// only reference loops, or kernels that write out of bounds, use the im2col convolution. `threads` are OpenMP's, a pool
// separate from OpenBLAS's; with 1 thread there is no pool.
std::unique_ptr<Convolution> MakeOneDnnConvolution(int threads);

}  // namespace ballast
