// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "worker/device/cpu/convolution.h"

namespace ballast {

// By oneDNN's direct convolutions, whose code is generated for a shape when it is first met. Shapes that oneDNN has
// only reference loops for go to the im2col convolution. `threads` are OpenMP's, a pool of its own beside OpenBLAS's;
// with 1 there is none.
std::unique_ptr<Convolution> MakeOneDnnConvolution(int threads);

}  // namespace ballast
