// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/table.pb.h"
#include "bench/rows/row_workload.h"
#include "bench/rows/rows_parts.h"
#include "server/tables/range/page_arena.h"
#include "server/tables/sparse_table.h"
#include "server/weights/optimizers/row_optimizer.h"

namespace ballast {

// Owns a table like a server's, and does on the calling thread what client and server do with the rows of a call: all
// but the messages between them. So it is the limit of any transport. Thread safety: all methods may be called from any
// thread.
class RowsInProcess {
 public:
  // The table gets rows 0 to `rows` - 1 by pushes of `gradients`, [ids, kRowDim].
  static absl::StatusOr<std::unique_ptr<RowsInProcess>> Create(uint64_t rows, absl::Span<const float> gradients);
  RowsInProcess(const RowsInProcess&) = delete;

  // `values`, `gradients`: [ids, kRowDim].
  absl::Status Pull(absl::Span<const uint64_t> ids, absl::Span<float> values) const;
  absl::Status Push(absl::Span<const uint64_t> ids, absl::Span<const float> gradients);

 private:
  RowsInProcess();

  const v1::TableSpec spec_ = RowsTable();
  const std::unique_ptr<RowOptimizer> optimizer_;
  const ZeroRows initial_;
  PageArena arena_;
  SparseTable table_;
};

}  // namespace ballast
