// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "worker/device/cuda/kernels/dropout.h"
#include "worker/device/cuda/kernels/map.h"

namespace ballast {
namespace {

struct DropoutCall {
  DropoutKey key;
  // Null: uses the seed and step of the key.
  const uint64_t* seed;
  // An element is kept if its random word is at least this.
  uint32_t threshold;
  float scale;
  int64_t n;
};

// One thread per draw of four elements, which are moved at once except at the end.
template <typename T>
__global__ void DropoutKernel(DropoutCall call, const T* x, T* y) {
  if (call.seed != nullptr) {
    call.key.seed = call.seed[0];
    call.key.step = call.seed[1];
  }
  for (int64_t draw = FirstElement(); draw * 4 < call.n; draw += ElementStride()) {
    const PhiloxWords words = DropoutWords(call.key, static_cast<uint64_t>(draw));
    const auto dropped = [&](T value, int k) {
      return static_cast<T>(words.word[k] >= call.threshold ? static_cast<float>(value) * call.scale : 0.0f);
    };
    if (draw * 4 + 4 <= call.n) {
      Pack<T, 4> four = reinterpret_cast<const Pack<T, 4>*>(x)[draw];
      for (int k = 0; k < 4; ++k) four.values[k] = dropped(four.values[k], k);
      reinterpret_cast<Pack<T, 4>*>(y)[draw] = four;
      continue;
    }
    for (int k = 0; draw * 4 + k < call.n; ++k) y[draw * 4 + k] = dropped(x[draw * 4 + k], k);
  }
}

__global__ void SetDropoutSeedKernel(uint64_t value, uint64_t step, uint64_t* seed) {
  seed[0] = value;
  seed[1] = step;
}

}  // namespace

cudaError_t LaunchDropout(cudaStream_t stream, float rate, const DropoutKey& key, const uint64_t* seed, int64_t n,
                          ConstElements x, Elements y) {
  if (n == 0) return cudaSuccess;
  if (!StartsPack(x.data) || !StartsPack(y.data)) return cudaErrorInvalidValue;
  const DropoutCall call = {key, seed, static_cast<uint32_t>(std::ldexp(static_cast<double>(rate), 32)),
                            1.0f / (1.0f - rate), n};
  return WithType(y.type, [&](auto type) {
    using T = decltype(type);
    return Launch(stream, BlocksFor(CeilDivide(n, 4)), kBlockThreads, DropoutKernel<T>, call, x.As<T>(), y.As<T>());
  });
}

cudaError_t LaunchSetDropoutSeed(cudaStream_t stream, uint64_t value, uint64_t step, uint64_t* seed) {
  return Launch(stream, dim3(1), dim3(1), SetDropoutSeedKernel, value, step, seed);
}

}  // namespace ballast
