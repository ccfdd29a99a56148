// SPDX-License-Identifier: Apache-2.0
#include "client/watch/row_copy.h"

#include <algorithm>

#include "common/tables/row_hash.h"
#include "common/tables/table_spec.h"

namespace ballast {

RowCopy::RowCopy(const v1::TableSpec& spec)
    : table_id_(spec.id()),
      dim_(spec.dim()),
      range_bits_(static_cast<int>(RangeBits(spec))),
      ranges_(RangeCount(spec)) {}

void RowCopy::Apply(const RangeUpdate& update) {
  Range& range = ranges_[update.range];
  absl::MutexLock lock(&range.mutex);
  if (update.replaces) range.rows.clear();
  for (uint64_t id : update.evicted) range.rows.erase(id);
  const float* values = update.values.data();
  for (uint64_t id : update.ids) {
    std::unique_ptr<float[]>& row = range.rows[id];
    if (row == nullptr) row = std::make_unique_for_overwrite<float[]>(dim_);
    std::copy_n(values, dim_, row.get());
    values += dim_;
  }
}

void RowCopy::Set(uint64_t id, absl::Span<const float> values) {
  Range& range = ranges_[RangeOf(RowHash(id, table_id_), range_bits_)];
  absl::MutexLock lock(&range.mutex);
  std::unique_ptr<float[]>& row = range.rows[id];
  if (row == nullptr) row = std::make_unique_for_overwrite<float[]>(dim_);
  std::copy_n(values.data(), dim_, row.get());
}

bool RowCopy::Find(uint64_t id, absl::Span<float> values) const {
  const Range& range = ranges_[RangeOf(RowHash(id, table_id_), range_bits_)];
  absl::ReaderMutexLock lock(&range.mutex);
  const auto row = range.rows.find(id);
  if (row == range.rows.end()) return false;
  std::copy_n(row->second.get(), dim_, values.data());
  return true;
}

uint64_t RowCopy::rows() const {
  uint64_t rows = 0;
  for (const Range& range : ranges_) {
    absl::ReaderMutexLock lock(&range.mutex);
    rows += range.rows.size();
  }
  return rows;
}

}  // namespace ballast
