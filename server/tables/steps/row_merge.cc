// SPDX-License-Identifier: Apache-2.0
#include "server/tables/steps/row_merge.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

namespace ballast {
namespace {

// The next row of an addend: hash and index of the addend, whose order breaks ties.
using Next = std::pair<uint64_t, uint32_t>;

// Visits the rows of all addends by hash, and those of one hash in the order of the addends.
template <typename Visit>
void VisitInOrder(absl::Span<const RowAddend> addends, Visit visit) {
  std::vector<Next> heap;
  std::vector<size_t> at(addends.size(), 0);
  for (uint32_t i = 0; i < addends.size(); ++i) {
    if (!addends[i].hashes.empty()) heap.emplace_back(addends[i].hashes[0], i);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto [hash, i] = heap.back();
    visit(hash, addends[i], at[i]);
    if (++at[i] == addends[i].hashes.size()) {
      heap.pop_back();
      continue;
    }
    heap.back().first = addends[i].hashes[at[i]];
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  }
}

std::vector<uint64_t> DistinctHashes(absl::Span<const RowAddend> addends) {
  std::vector<uint64_t> hashes;
  VisitInOrder(addends, [&](uint64_t hash, const RowAddend&, size_t) {
    if (hashes.empty() || hashes.back() != hash) hashes.push_back(hash);
  });
  return hashes;
}

std::vector<uint16_t> AddUses(absl::Span<const RowAddend> addends, size_t rows) {
  std::vector<uint16_t> uses(rows, 0);
  std::optional<uint64_t> last;
  size_t row = 0;
  VisitInOrder(addends, [&](uint64_t hash, const RowAddend& addend, size_t at) {
    if (last.has_value() && *last != hash) ++row;
    last = hash;
    const uint32_t more = addend.uses.empty() ? 1 : addend.uses[at];
    uses[row] = static_cast<uint16_t>(std::min<uint32_t>(uses[row] + more, UINT16_MAX));
  });
  return uses;
}

uint32_t CountWorkers(absl::Span<const RowAddend> addends) {
  uint32_t workers = 0;
  for (size_t i = 0; i < addends.size(); ++i) workers += i == 0 || addends[i].worker != addends[i - 1].worker;
  return workers;
}

}  // namespace

MergedRows MergeRows(absl::Span<const RowAddend> addends, uint32_t dim, uint64_t examples, bool count_uses) {
  MergedRows merged;
  merged.hashes = DistinctHashes(addends);
  if (merged.hashes.empty()) return merged;
  if (count_uses) merged.uses = AddUses(addends, merged.hashes.size());
  merged.gradients = ValueBuffer(merged.hashes.size() * dim);
  // Gradients over all examples of the step are kept bit for bit.
  const bool weighted =
      std::any_of(addends.begin(), addends.end(), [&](const RowAddend& addend) { return addend.examples != examples; });
  if (weighted) merged.scale = static_cast<float>(1.0 / static_cast<double>(examples));
  const uint32_t workers = CountWorkers(addends);
  float* sum = merged.gradients.mutable_values().data();
  const float* const first = sum;
  const uint64_t* hash_of_sum = nullptr;
  uint32_t last_worker = 0, workers_of_row = 0;
  // The zeros of workers that did not send the row turn a sum of -0 into 0.
  const auto end_row = [&] {
    if (!weighted || workers_of_row == workers) return;
    for (uint32_t k = 0; k < dim; ++k) sum[k] += 0.0f;
  };
  VisitInOrder(addends, [&](uint64_t hash, const RowAddend& addend, size_t at) {
    const float weight = weighted ? static_cast<float>(addend.examples) : 1.0f;
    const float* const gradient = addend.gradients.data() + at * dim;
    if (hash_of_sum == nullptr || *hash_of_sum != hash) {
      if (hash_of_sum != nullptr) {
        end_row();
        sum += dim;
      }
      hash_of_sum = merged.hashes.data() + (sum - first) / dim;
      workers_of_row = 1;
      for (uint32_t k = 0; k < dim; ++k) sum[k] = weight * gradient[k];
    } else {
      workers_of_row += addend.worker != last_worker;
      for (uint32_t k = 0; k < dim; ++k) sum[k] += weight * gradient[k];
    }
    last_worker = addend.worker;
  });
  end_row();
  return merged;
}

}  // namespace ballast
