// SPDX-License-Identifier: Apache-2.0
#include "bench/rows/row_sampler.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "common/tables/row_hash.h"

namespace ballast {

RowSampler::RowSampler(uint64_t rows, double exponent, uint64_t seed)
    : uniform_(exponent == 0), random_(seed), flat_(0, rows - 1), skewed_(rows - 1, uniform_ ? 2 : exponent) {}

std::vector<uint64_t> RowSampler::Draw(size_t count) {
  std::vector<uint64_t> ids;
  ids.reserve(count);
  absl::flat_hash_set<uint64_t> seen;
  while (ids.size() < count) {
    const uint64_t id = uniform_ ? flat_(random_) : skewed_(random_);
    if (seen.insert(id).second) ids.push_back(id);
  }
  return ids;
}

std::vector<uint64_t> SortedHashes(std::vector<uint64_t> ids) {
  for (uint64_t& id : ids) id = RowHash(id, 1);
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace ballast
