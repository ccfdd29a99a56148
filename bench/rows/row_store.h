// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "server/tables/range/row_batch.h"

namespace ballast {

// Owns rows of `dim` weights and one slot, by hash. All stores lay out a row and update it in the same way, so that
// they differ only in how they find it. Thread safety: confined to one thread.
class RowStore {
 public:
  virtual ~RowStore() = default;

  // All hashes of a pull exist.
  virtual void Pull(const BatchPull& pull) = 0;
  // Creates the rows that are missing.
  virtual void Push(const BatchPush& push) = 0;
  // Bytes of index and rows.
  virtual uint64_t MemoryBytes() const = 0;
};

// The server's own table, which knows no server. `presized_rows`: rows for which its index has room from the start, or
// 0 to let it grow.
std::unique_ptr<RowStore> MakeBallastRows(uint64_t presized_rows, int dim);

// A kind of store; the first one is ours.
struct RowStoreKind {
  const char* name;
  // Ours grows; the peers have room for `rows` from the start.
  std::unique_ptr<RowStore> (*make)(uint64_t rows, int dim);
};
absl::Span<const RowStoreKind> RowStoreKinds();

}  // namespace ballast
