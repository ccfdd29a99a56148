// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ballast/v1/table.pb.h"
#include "client/rows/row_delta_reader.h"

namespace ballast {

// Owns a copy of a table's rows, for programs that serve. Invariant: a lookup sees an update of a range whole or not at
// all. Deliberately does not know where updates come from, nor the initial values of rows that do not exist. Thread
// safety: all methods may be called from any thread; updates of one range one after the other.
class RowCopy {
 public:
  // `spec` is valid.
  explicit RowCopy(const v1::TableSpec& spec);

  uint32_t table_id() const { return table_id_; }
  uint32_t dim() const { return dim_; }

  // The update is of this table.
  void Apply(const RangeUpdate& update);

  // Adds or replaces a row, of dim() values.
  void Set(uint64_t id, absl::Span<const float> values);

  // Copies a row's values, of which there is space for dim(). False if the row does not exist; `values` then stays.
  bool Find(uint64_t id, absl::Span<float> values) const;

  uint64_t rows() const;

 private:
  // Rows of one range.
  struct Range {
    mutable absl::Mutex mutex;
    absl::flat_hash_map<uint64_t, std::unique_ptr<float[]>> rows ABSL_GUARDED_BY(mutex);
  };

  const uint32_t table_id_;
  const uint32_t dim_;
  const int range_bits_;
  std::vector<Range> ranges_;
};

}  // namespace ballast
