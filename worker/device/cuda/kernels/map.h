// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"
#include "worker/device/cuda/kernels/launch.h"

// Elementwise functions:
//
//   y[i] = f(x_1[i], ..., x_N[i])
//
// A thread moves 16 bytes at once; otherwise 16-bit elements would take nearly as long as floats.
namespace ballast {

// A group of elements that is moved at once.
template <typename T, int N>
struct alignas(N * sizeof(T)) Pack {
  T values[N];
};

template <typename T>
inline constexpr int kPackElements = 16 / static_cast<int>(sizeof(T));

// The inputs of one element of y.
template <int N>
struct Inputs {
  float x[N];
};

template <typename T, int N>
struct MapCall {
  const T* x[N];
  T* y;
  int64_t n;
  // Number of packs, which come first; the remaining elements are moved one by one.
  int64_t packs;
};

template <typename T, int N, typename Function>
__global__ void MapKernel(Function f, MapCall<T, N> call) {
  using Packed = Pack<T, kPackElements<T>>;
  for (int64_t p = FirstElement(); p < call.packs; p += ElementStride()) {
    Packed in[N], out;
    for (int k = 0; k < N; ++k) in[k] = reinterpret_cast<const Packed*>(call.x[k])[p];
    for (int e = 0; e < kPackElements<T>; ++e) {
      Inputs<N> inputs;
      for (int k = 0; k < N; ++k) inputs.x[k] = static_cast<float>(in[k].values[e]);
      out.values[e] = static_cast<T>(f(inputs));
    }
    reinterpret_cast<Packed*>(call.y)[p] = out;
  }
  for (int64_t i = call.packs * kPackElements<T> + FirstElement(); i < call.n; i += ElementStride()) {
    Inputs<N> inputs;
    for (int k = 0; k < N; ++k) inputs.x[k] = static_cast<float>(call.x[k][i]);
    call.y[i] = static_cast<T>(f(inputs));
  }
}

inline bool InPacks(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % 16 == 0; }

// All elements have one type; y may be one of the inputs. `f` is a struct that a kernel can call with Inputs<N>.
template <int N, typename Function>
cudaError_t LaunchMap(cudaStream_t stream, const Function& f, int64_t n, const ConstElements (&x)[N], Elements y) {
  if (n == 0) return cudaSuccess;
  bool packed = InPacks(y.data);
  for (const ConstElements& each : x) packed = packed && InPacks(each.data);
  return WithType(y.type, [&](auto type) {
    using T = decltype(type);
    MapCall<T, N> call = {{}, y.As<T>(), n, packed ? n / kPackElements<T> : 0};
    for (int k = 0; k < N; ++k) call.x[k] = x[k].template As<T>();
    return Launch(stream, BlocksFor(packed ? CeilDivide(n, kPackElements<T>) : n), kBlockThreads,
                  MapKernel<T, N, Function>, f, call);
  });
}

}  // namespace ballast
