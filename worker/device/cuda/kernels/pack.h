// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// Elements that a thread moves at once. A GPU moves up to 16 bytes with one instruction; one by one, 16-bit elements
// would take nearly as long as floats.
namespace ballast {

inline constexpr int kPackBytes = 16;

// N elements. More than 16 bytes are moved as several times 16, so no more is asked of their address.
template <typename T, int N>
struct alignas(N * sizeof(T) < kPackBytes ? N * sizeof(T) : kPackBytes) Pack {
  T values[N];
};

// Number of elements in kPackBytes.
template <typename T>
inline constexpr int kPackElements = kPackBytes / static_cast<int>(sizeof(T));

// `from` must be a multiple of the pack's alignment.
template <int N, typename T>
__device__ inline Pack<T, N> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}

inline bool StartsPack(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % kPackBytes == 0; }

}  // namespace ballast
