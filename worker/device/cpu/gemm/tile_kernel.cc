// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/gemm/tile_kernel.h"

#include <algorithm>
#include <cstring>

namespace ballast {
namespace {

#if defined(__x86_64__)

// Floats per cache line.
constexpr int64_t kLine = 16;

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

// Computes a tile. The option -ffp-contract=fast fuses the multiplication with the addition.
template <typename Set, int kTileRows, int kVectors>
struct TileLoop {
  static constexpr int kFloats = Set::kFloats;
  using Vector = typename Set::Vector;

  // A reference: a copy of the fields that the caller has just written would wait for them.
  const Tile& tile;

  ABSL_ATTRIBUTE_ALWAYS_INLINE static void Stream(const Vector& vector, float* to) {
#if defined(__clang__)
    __builtin_nontemporal_store(vector, reinterpret_cast<Vector*>(to));
#else
    asm("vmovntps %1, %0" : "=m"(*reinterpret_cast<Vector*>(to)) : "v"(vector));
#endif
  }

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    Vector sums[kTileRows][kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) {
        sums[i][j] = Vector{};
        if (tile.accumulate) std::memcpy(&sums[i][j], tile.c + i * tile.c_row + j * kFloats, sizeof(Vector));
      }
    }
    const float* left = tile.left;
    const float* right = tile.right;
    const float* fetch = tile.fetch;
    float* copy = tile.copy;
    // In registers, because the compiler must assume that a copied vector overwrites the tile.
    const int64_t depth = tile.depth, left_row = tile.left_row, left_step = tile.left_step;
    const int64_t right_step = tile.right_step, fetch_row = tile.fetch_row;
    for (int64_t done = 0; done < depth; done += kLine) {
      if (fetch != nullptr) {
#pragma GCC unroll 8
        for (int i = 0; i < TileKernel::kRows; ++i) __builtin_prefetch(fetch + i * fetch_row, 0, 2);
        fetch += kLine;
      }
      const int64_t end = std::min(done + kLine, depth);
      for (int64_t p = done; p < end; ++p, left += left_step, right += right_step) {
        Vector vectors[kVectors];
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) std::memcpy(&vectors[j], right + j * kFloats, sizeof(Vector));
        if (copy != nullptr) {
#pragma GCC unroll 8
          for (int j = 0; j < kVectors; ++j) std::memcpy(copy + j * kFloats, &vectors[j], sizeof(Vector));
          copy += Set::kVectors * kFloats;
        }
#pragma GCC unroll 8
        for (int i = 0; i < kTileRows; ++i) {
          const float number = left[i * left_row];
#pragma GCC unroll 8
          for (int j = 0; j < kVectors; ++j) sums[i][j] += number * vectors[j];
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) {
        float* const c = tile.c + i * tile.c_row + j * kFloats;
        if (tile.stream) {
          Stream(sums[i][j], c);
        } else {
          std::memcpy(c, &sums[i][j], sizeof(Vector));
        }
      }
    }
  }
};

// Null for more vectors than a tile has.
template <typename Set, int kTileRows, int kVectors>
constexpr auto Multiplier() -> void (*)(const Tile&) {
  if constexpr (kVectors <= Set::kVectors) {
    return [](const Tile& tile) { Set::Run(TileLoop<Set, kTileRows, kVectors>{tile}); };
  }
  return nullptr;
}

#define BALLAST_ROW(r) \
  { Multiplier<Set, r, 1>(), Multiplier<Set, r, 2>(), Multiplier<Set, r, 3>(), Multiplier<Set, r, 4>() }
template <typename Set>
constexpr TileKernel KernelOf(const char* name, int most_batch) {
  return {name,
          Set::kFloats,
          most_batch,
          Set::kVectors,
          {BALLAST_ROW(1), BALLAST_ROW(2), BALLAST_ROW(3), BALLAST_ROW(4), BALLAST_ROW(5), BALLAST_ROW(6)}};
}
#undef BALLAST_ROW

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
