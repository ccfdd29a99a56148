// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/gemm/tile_kernel.h"

#include "worker/device/cpu/gemm/tile_loop.h"

namespace ballast {
namespace {

#if defined(__x86_64__)

// AVX-512: a tile is 6 rows by 4 vectors of 16 floats. 24 of the 32 registers hold sums, 4 the row of right, 1 the
// number of left. One p takes 24 multiply-adds, 12 cycles if a core starts two a cycle, and 10 loads, fewer than it
// can start in that time. Two multiply-adds a cycle of 4 cycles latency need 8 independent sums; there are 24.
struct Avx512 {
  static constexpr int kFloats = 16;
  static constexpr int kVectors = 4;
  typedef float Vector __attribute__((vector_size(64)));

  template <typename Loop>
  static void Run(Loop loop) {
    RunWithAvx512(loop);
  }
};

// AVX2: 6 rows by 2 vectors of 8 floats. 12 of the 16 registers hold sums, 2 the row of right, 1 the number of left.
// One p takes 12 multiply-adds, 6 cycles, and 8 loads.
struct Avx2 {
  static constexpr int kFloats = 8;
  static constexpr int kVectors = 2;
  typedef float Vector __attribute__((vector_size(32)));

  template <typename Loop>
  static void Run(Loop loop) {
    RunWithAvx2(loop);
  }
};

constexpr TileKernel kAvx2 = KernelOf<Avx2>("AVX2", 64), kAvx512 = KernelOf<Avx512>("AVX-512", 512);

#endif

}  // namespace

const TileKernel* TileKernelOf([[maybe_unused]] InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return &kAvx512;
  if (set == InstructionSet::kAvx2) return &kAvx2;
#endif
  return nullptr;
}

}  // namespace ballast
