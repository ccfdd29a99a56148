// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/map.h"
#include "worker/device/cuda/kernels/vector.h"

namespace ballast {
namespace {

template <typename T>
__global__ void FillKernel(float value, int64_t n, T* y) {
  for (int64_t i = FirstElement(); i < n; i += ElementStride()) y[i] = static_cast<T>(value);
}

struct Scaled {
  float alpha;

  __device__ float operator()(const Inputs<1>& in) const { return alpha * in.x[0]; }
};

struct Sum {
  // Factor of the second input.
  float alpha;

  __device__ float operator()(const Inputs<2>& in) const { return in.x[0] + alpha * in.x[1]; }
};

}  // namespace

cudaError_t LaunchFill(cudaStream_t stream, float value, int64_t n, Elements y) {
  if (n == 0) return cudaSuccess;
  return WithType(y.type, [&](auto type) {
    using T = decltype(type);
    return Launch(stream, BlocksFor(n), kBlockThreads, FillKernel<T>, value, n, y.As<T>());
  });
}

cudaError_t LaunchScale(cudaStream_t stream, float alpha, int64_t n, Elements x) {
  return LaunchMap<1>(stream, Scaled{alpha}, n, {x}, x);
}

cudaError_t LaunchAxpy(cudaStream_t stream, float alpha, int64_t n, ConstElements x, Elements y) {
  return LaunchMap<2>(stream, Sum{alpha}, n, {y, x}, y);
}

cudaError_t LaunchAdd(cudaStream_t stream, int64_t n, ConstElements a, ConstElements b, Elements y) {
  return LaunchMap<2>(stream, Sum{1.0f}, n, {a, b}, y);
}

}  // namespace ballast
