// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "worker/device/cuda/kernels/dropout.h"
#include "worker/device/cuda/kernels/launch.h"

namespace ballast {
namespace {

struct DropoutCall {
  DropoutKey key;
  // Null: the key's own.
  const uint64_t* seed;
  // An element stays where its word is at least this.
  uint32_t threshold;
  float scale;
  int64_t n;
};

// A thread for each draw, which is four elements.
__global__ void DropoutKernel(DropoutCall call, const float* x, float* y) {
  if (call.seed != nullptr) {
    call.key.seed = call.seed[0];
    call.key.step = call.seed[1];
  }
  for (int64_t draw = FirstElement(); draw * 4 < call.n; draw += ElementStride()) {
    const PhiloxWords words = DropoutWords(call.key, static_cast<uint64_t>(draw));
    for (int k = 0; k < 4; ++k) {
      const int64_t i = draw * 4 + k;
      if (i < call.n) y[i] = words.word[k] >= call.threshold ? x[i] * call.scale : 0.0f;
    }
  }
}

__global__ void SetDropoutSeedKernel(uint64_t value, uint64_t step, uint64_t* seed) {
  seed[0] = value;
  seed[1] = step;
}

}  // namespace

cudaError_t LaunchDropout(cudaStream_t stream, float rate, const DropoutKey& key, const uint64_t* seed, int64_t n,
                          const float* x, float* y) {
  if (n == 0) return cudaSuccess;
  const DropoutCall call = {key, seed, static_cast<uint32_t>(std::ldexp(static_cast<double>(rate), 32)),
                            1.0f / (1.0f - rate), n};
  return Launch(stream, BlocksFor(CeilDivide(n, 4)), kBlockThreads, DropoutKernel, call, x, y);
}

cudaError_t LaunchSetDropoutSeed(cudaStream_t stream, uint64_t value, uint64_t step, uint64_t* seed) {
  return Launch(stream, dim3(1), dim3(1), SetDropoutSeedKernel, value, step, seed);
}

}  // namespace ballast
