// SPDX-License-Identifier: Apache-2.0
#include "server/tables/message_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "common/tables/row_hash.h"

namespace ballast {
namespace {

absl::Status Invalid(absl::string_view message) {
  return WithReason(v1::ERROR_REASON_INVALID_REQUEST, absl::InvalidArgumentError(message));
}

absl::Status OutOfOrder(size_t at, uint64_t before, uint64_t id) {
  if (before == id) return Invalid(absl::StrCat("ids[", at, "]: got ", id, " again, want each id once, or unordered"));
  return Invalid(absl::StrCat("ids[", at, "]: got ", id, " after ", before,
                              ", want ids in ascending order of their hash, or unordered"));
}

struct HashAt {
  uint64_t hash;
  uint32_t at;
};

// Sorts by hash, then by place. Hashes are spread evenly, so their first bits put each near its place.
std::vector<HashAt> Sorted(absl::Span<const uint64_t> hashes) {
  const int bits = std::clamp<int>(std::bit_width(hashes.size() / 8), 1, 16);
  const auto bucket = [&](uint64_t hash) { return hash >> (64 - bits); };
  std::vector<uint32_t> ends(size_t{1} << bits, 0);
  for (uint64_t hash : hashes) ++ends[bucket(hash)];
  uint32_t sum = 0;
  for (uint32_t& end : ends) sum = std::exchange(end, sum) + sum;
  std::vector<HashAt> sorted(hashes.size());
  for (uint32_t at = 0; at < hashes.size(); ++at) sorted[ends[bucket(hashes[at])]++] = {hashes[at], at};
  uint32_t first = 0;
  for (uint32_t end : ends) {
    std::sort(sorted.begin() + first, sorted.begin() + end,
              [](const HashAt& a, const HashAt& b) { return a.hash != b.hash ? a.hash < b.hash : a.at < b.at; });
    first = end;
  }
  return sorted;
}

}  // namespace

absl::StatusOr<MessageRows> MessageRows::Of(absl::string_view ids, uint32_t table_id, bool unordered) {
  if (ids.size() % sizeof(uint64_t) != 0) {
    return Invalid(absl::StrCat("ids: got ", ids.size(), " bytes, want a multiple of 8"));
  }
  MessageRows order;
  order.hashes_.resize(ids.size() / sizeof(uint64_t));
  const auto id_at = [&](size_t i) {
    uint64_t id;
    std::memcpy(&id, ids.data() + i * sizeof(id), sizeof(id));
    return id;
  };
  bool ascending = true;
  for (size_t i = 0; i < order.hashes_.size(); ++i) {
    order.hashes_[i] = RowHash(id_at(i), table_id);
    if (i == 0 || order.hashes_[i - 1] < order.hashes_[i]) continue;
    if (!unordered) return OutOfOrder(i, id_at(i - 1), id_at(i));
    ascending = false;
  }
  if (!ascending) order.Sort();
  return order;
}

void MessageRows::Sort() {
  const std::vector<HashAt> sorted = Sorted(hashes_);
  row_of_.resize(sorted.size());
  size_t rows = 0;
  for (const HashAt& entry : sorted) {
    if (rows == 0 || hashes_[rows - 1] != entry.hash) hashes_[rows++] = entry.hash;
    row_of_[entry.at] = rows - 1;
  }
  hashes_.resize(rows);
}

}  // namespace ballast
