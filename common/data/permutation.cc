// SPDX-License-Identifier: Apache-2.0
#include "common/data/permutation.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace ballast {
namespace {

// SplitMix64's output function (G. Steele, D. Lea and C. Flood, 2014).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

}  // namespace

Permutation::Permutation(uint64_t n, uint64_t seed, uint32_t epoch)
    : n_(n), half_bits_((std::bit_width(n - 1) + 1) / 2), half_mask_((1ull << half_bits_) - 1) {
  // Seed and epoch are mixed one after the other, so that seed 1, epoch 0 and seed 0, epoch 1 differ.
  uint64_t state = Mix(Mix(seed + kGolden) + epoch);
  for (uint64_t& key : round_keys_) key = Mix(state += kGolden);
}

uint64_t Permutation::Encrypt(uint64_t block) const {
  uint64_t left = block >> half_bits_;
  uint64_t right = block & half_mask_;
  for (const uint64_t key : round_keys_) {
    // The upper bits are better mixed than the lower ones.
    const uint64_t next = left ^ ((Mix(right + key) >> 32) & half_mask_);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

uint64_t Permutation::operator()(uint64_t position) const {
  // The network permutes fewer than 4n blocks, so a walk takes fewer than 4 steps on average. It ends because the cycle
  // returns to `position`.
  do {
    position = Encrypt(position);
  } while (position >= n_);
  return position;
}

namespace {

// No epoch has this number, so that examples are held out independently of how they are shuffled.
constexpr uint32_t kHeldOutEpoch = ~0u;

}  // namespace

std::vector<uint64_t> HeldOutExamples(uint64_t n, double share, uint64_t seed) {
  if (n < 2 || !(share > 0)) return {};
  const uint64_t count = std::clamp<uint64_t>(std::llround(share * n), 1, n - 1);
  const Permutation order(n, seed, kHeldOutEpoch);
  std::vector<uint64_t> indices(count);
  for (uint64_t i = 0; i < count; ++i) indices[i] = order(i);
  std::sort(indices.begin(), indices.end());
  return indices;
}

}  // namespace ballast
