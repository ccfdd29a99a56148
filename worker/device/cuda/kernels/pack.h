// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

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

// `to` must be a multiple of the pack's alignment.
template <typename T, int N>
__device__ inline void StorePack(const Pack<T, N>& pack, T* to) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

inline bool StartsPack(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % kPackBytes == 0; }

// Calls launch(W) and returns its result; W is a std::integral_constant, the number of columns that a thread handles at
// once: a pack if each row of the matrices of T at these addresses, which may be null, begins with one, otherwise 1.
template <typename T, typename LaunchWidth>
cudaError_t WithWidth(int64_t columns, std::initializer_list<const void*> matrices, LaunchWidth launch) {
  bool packed = columns % kPackElements<T> == 0;
  for (const void* matrix : matrices) packed = packed && StartsPack(matrix);
  return packed ? launch(std::integral_constant<int, kPackElements<T>>()) : launch(std::integral_constant<int, 1>());
}

}  // namespace ballast
