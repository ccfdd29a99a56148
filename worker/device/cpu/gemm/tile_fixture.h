// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "worker/device/cpu/gemm/tile_kernel.h"

namespace ballast {

// Tiles of AVX-512's size, of whose vectors each is two of AVX2, which the machine must have. So a machine without
// AVX-512 tests the blocks and the panels that tiles of that size need. Null on another architecture.
const TileKernel* Avx512TilesOnAvx2();

}  // namespace ballast
