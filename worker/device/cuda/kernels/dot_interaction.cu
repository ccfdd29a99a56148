// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/dot_interaction.h"
#include "worker/device/cuda/kernels/launch.h"
#include "worker/device/cuda/kernels/pair_math.h"

// With the vectors x_0 ... x_(n - 1) of a row, and p(v, u) = dim + v (v - 1) / 2 + u for u < v, p(u, v) = p(v, u):
//
//   forward   y[d] = x_0[d] for d < dim; y[p(v, u)] = sum over d of x_v[d] * x_u[d]
//   backward  dx_v[d] = sum over u != v of dy[p(v, u)] * x_u[d]; for v = 0 plus dy[d]
//
// One block handles one row, and one thread one result.
namespace ballast {
namespace {

// Floats of the vectors in shared memory: 27 vectors of up to 220 elements. Larger rows are read again and again.
constexpr int kSharedFloats = 6144;

// The dot product of two vectors of a row; each begins `stride` elements after the one before.
template <typename T>
__device__ float Product(const T* x, int64_t stride, int64_t dim, Pair pair) {
  float sum = 0.0f;
  for (int64_t d = 0; d < dim; ++d) {
    sum += static_cast<float>(x[pair.v * stride + d]) * static_cast<float>(x[pair.u * stride + d]);
  }
  return sum;
}

template <typename T>
__global__ void DotInteractionKernel(InteractionCall call, T* y) {
  __shared__ float shared[kSharedFloats];
  const T* const x = call.x.As<T>() + blockIdx.x * call.vectors * call.dim;
  y += blockIdx.x * (call.dim + call.pairs());
  // An odd distance of the vectors: threads that read the same element of several then use different banks.
  const int64_t stride = call.dim | 1;
  const bool is_shared = call.vectors * stride <= kSharedFloats;
  if (is_shared) {
    for (int64_t e = threadIdx.x; e < call.vectors * call.dim; e += blockDim.x) {
      shared[e / call.dim * stride + e % call.dim] = static_cast<float>(x[e]);
    }
    __syncthreads();
  }
  for (int64_t d = threadIdx.x; d < call.dim; d += blockDim.x) y[d] = x[d];
  for (int64_t p = threadIdx.x; p < call.pairs(); p += blockDim.x) {
    const Pair pair = PairOf(p);
    const float product = is_shared ? Product(shared, stride, call.dim, pair) : Product(x, call.dim, call.dim, pair);
    y[call.dim + p] = static_cast<T>(product);
  }
}

template <typename T>
__global__ void DotInteractionBackwardKernel(InteractionCall call, const T* dy, T* dx) {
  const T* const x = call.x.As<T>() + blockIdx.x * call.vectors * call.dim;
  dy += blockIdx.x * (call.dim + call.pairs());
  dx += blockIdx.x * call.vectors * call.dim;
  for (int64_t e = threadIdx.x; e < call.vectors * call.dim; e += blockDim.x) {
    const int64_t v = e / call.dim, d = e % call.dim;
    float sum = v == 0 ? static_cast<float>(dy[d]) : 0.0f;
    for (int64_t u = 0; u < call.vectors; ++u) {
      if (u == v) continue;
      sum += static_cast<float>(dy[call.dim + PairIndex(v, u)]) * static_cast<float>(x[u * call.dim + d]);
    }
    dx[e] = static_cast<T>(sum);
  }
}

}  // namespace

cudaError_t LaunchDotInteraction(cudaStream_t stream, const InteractionCall& call, Elements y) {
  if (call.rows == 0) return cudaSuccess;
  return WithType(y.type, [&](auto type) {
    using T = decltype(type);
    return Launch(stream, dim3(static_cast<unsigned>(call.rows)), kBlockThreads, DotInteractionKernel<T>, call,
                  y.As<T>());
  });
}

cudaError_t LaunchDotInteractionBackward(cudaStream_t stream, const InteractionCall& call, ConstElements dy,
                                         Elements dx) {
  if (call.rows == 0) return cudaSuccess;
  return WithType(dx.type, [&](auto type) {
    using T = decltype(type);
    return Launch(stream, dim3(static_cast<unsigned>(call.rows)), kBlockThreads, DotInteractionBackwardKernel<T>, call,
                  dy.As<T>(), dx.As<T>());
  });
}

}  // namespace ballast
