// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/device_types.h"

// The generator of worker/device/philox.h, and the CPU dropout's use of it, for kernels.
namespace ballast {

struct PhiloxWords {
  uint32_t word[4];
};

struct PhiloxKey {
  uint32_t low;
  uint32_t high;
};

__host__ __device__ inline PhiloxWords PhiloxDraw(PhiloxWords counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter.word[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter.word[2];
    counter = {{static_cast<uint32_t>(p1 >> 32) ^ counter.word[1] ^ key.low, static_cast<uint32_t>(p1),
                static_cast<uint32_t>(p0 >> 32) ^ counter.word[3] ^ key.high, static_cast<uint32_t>(p0)}};
    key.low += 0x9E3779B9;
    key.high += 0xBB67AE85;
  }
  return counter;
}

// Random words for the elements 4 * draw to 4 * draw + 3.
__host__ __device__ inline PhiloxWords DropoutWords(const DropoutKey& key, uint64_t draw) {
  const PhiloxKey philox_key = {static_cast<uint32_t>(key.seed),
                                static_cast<uint32_t>(key.seed >> 32) ^ (key.layer * 0x9E3779B9u)};
  return PhiloxDraw({{static_cast<uint32_t>(draw), static_cast<uint32_t>(draw >> 32), static_cast<uint32_t>(key.step),
                      static_cast<uint32_t>(key.step >> 32)}},
                    philox_key);
}

}  // namespace ballast
