// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"
#include "worker/device/cuda/kernels/launch.h"
#include "worker/device/cuda/kernels/pack.h"

// Elementwise functions:
//
//   y[i] = f(x_1[i], ..., x_N[i])
//
// A thread moves a pack at once. Elements before the first pack and after the last one are moved one by one.
namespace ballast {

// The inputs of one element of y.
template <int N>
struct Inputs {
  float x[N];
};

template <typename In, typename Out, int N>
struct MapCall {
  // In the smaller type, a pack has 16 bytes.
  static constexpr int kElements = (kPackElements<In>) > (kPackElements<Out>) ? kPackElements<In> : kPackElements<Out>;

  const In* x[N];
  Out* y;
  int64_t n;
  // Elements before the first pack.
  int64_t head;
  int64_t packs;
};

template <typename In, typename Out, int N, typename Function>
__global__ void MapKernel(Function f, MapCall<In, Out, N> call) {
  constexpr int kElements = MapCall<In, Out, N>::kElements;
  for (int64_t p = FirstElement(); p < call.packs; p += ElementStride()) {
    const int64_t at = call.head + p * kElements;
    Pack<In, kElements> in[N];
    Pack<Out, kElements> out;
    for (int k = 0; k < N; ++k) in[k] = LoadPack<kElements>(call.x[k] + at);
    for (int e = 0; e < kElements; ++e) {
      Inputs<N> inputs;
      for (int k = 0; k < N; ++k) inputs.x[k] = static_cast<float>(in[k].values[e]);
      out.values[e] = static_cast<Out>(f(inputs));
    }
    StorePack(out, call.y + at);
  }
  const int64_t packed = call.packs * kElements;
  for (int64_t single = FirstElement(); single < call.n - packed; single += ElementStride()) {
    const int64_t i = single < call.head ? single : single + packed;
    Inputs<N> inputs;
    for (int k = 0; k < N; ++k) inputs.x[k] = static_cast<float>(call.x[k][i]);
    call.y[i] = static_cast<Out>(f(inputs));
  }
}

// Sets head and packs, for the given addresses and n.
template <typename In, typename Out, int N>
void Split(MapCall<In, Out, N>* call) {
  const bool by_input = sizeof(In) < sizeof(Out);
  const uintptr_t address = by_input ? reinterpret_cast<uintptr_t>(call->x[0]) : reinterpret_cast<uintptr_t>(call->y);
  // All have the first pack at the same element, or none has one.
  call->head = (kPackBytes - address % kPackBytes) % kPackBytes / (by_input ? sizeof(In) : sizeof(Out));
  bool packed = call->head <= call->n && StartsPack(call->y + call->head);
  for (const In* x : call->x) packed = packed && StartsPack(x + call->head);
  if (!packed) call->head = call->n;
  call->packs = (call->n - call->head) / MapCall<In, Out, N>::kElements;
}

// `f` is a struct that a kernel can call with Inputs<N>. y may be one of the inputs.
template <typename In, typename Out, int N, typename Function>
cudaError_t LaunchMap(cudaStream_t stream, const Function& f, MapCall<In, Out, N> call) {
  if (call.n == 0) return cudaSuccess;
  Split(&call);
  const int64_t threads = call.packs > 0 ? CeilDivide(call.n, call.kElements) : call.n;
  return Launch(stream, BlocksFor(threads), kBlockThreads, MapKernel<In, Out, N, Function>, f, call);
}

// The same if all elements have one type.
template <int N, typename Function>
cudaError_t LaunchMap(cudaStream_t stream, const Function& f, int64_t n, const ConstElements (&x)[N], Elements y) {
  return WithType(y.type, [&](auto type) {
    using T = decltype(type);
    MapCall<T, T, N> call = {{}, y.As<T>(), n, 0, 0};
    for (int k = 0; k < N; ++k) call.x[k] = x[k].template As<T>();
    return LaunchMap(stream, f, call);
  });
}

}  // namespace ballast
