// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/gemm/tile_fixture.h"

#include "worker/device/cpu/gemm/tile_loop.h"

namespace ballast {

#if defined(__x86_64__)

namespace {

struct Avx512OnAvx2 {
  static constexpr int kFloats = 16;
  static constexpr int kVectors = 4;
  typedef float Vector __attribute__((vector_size(64)));

  template <typename Loop>
  static void Run(Loop loop) {
    RunWithAvx2(loop);
  }
};

}  // namespace

const TileKernel* Avx512TilesOnAvx2() {
  static constexpr TileKernel kKernel = KernelOf<Avx512OnAvx2>("AVX-512's tiles on AVX2", 512);
  return &kKernel;
}

#else

const TileKernel* Avx512TilesOnAvx2() { return nullptr; }

#endif

}  // namespace ballast
