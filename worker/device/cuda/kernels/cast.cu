// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/cast.h"
#include "worker/device/cuda/kernels/map.h"

namespace ballast {
namespace {

// The types of input and output convert.
struct Same {
  __device__ float operator()(const Inputs<1>& in) const { return in.x[0]; }
};

template <typename In, typename Out>
cudaError_t LaunchCast(cudaStream_t stream, int64_t n, const void* x, void* y) {
  return LaunchMap(stream, Same(), MapCall<In, Out, 1>{{static_cast<const In*>(x)}, static_cast<Out*>(y), n, 0, 0});
}

}  // namespace

cudaError_t LaunchToHalf(cudaStream_t stream, HalfType type, int64_t n, const float* x, uint16_t* y) {
  return type == HalfType::kBf16 ? LaunchCast<float, Bf16>(stream, n, x, y) : LaunchCast<float, Fp16>(stream, n, x, y);
}

cudaError_t LaunchFromHalf(cudaStream_t stream, HalfType type, int64_t n, const uint16_t* x, float* y) {
  return type == HalfType::kBf16 ? LaunchCast<Bf16, float>(stream, n, x, y) : LaunchCast<Fp16, float>(stream, n, x, y);
}

}  // namespace ballast
