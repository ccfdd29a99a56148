// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "tests/fault/tables/row_uses.h"

namespace ballast {

// Rows of one counting table as read, row-major.
struct ReadRows {
  absl::Span<const uint64_t> ids;
  absl::Span<const float> values;
  absl::Span<const uint32_t> versions;
  absl::Span<const uint8_t> present;
};

struct LedgerReport {
  uint64_t rows_checked = 0;
  // Rows of which any weight, the version or the presence is not as in the ledger.
  uint64_t rows_wrong = 0;
  // Describes the first of them: table, row, got and want.
  std::string first_wrong;

  void Add(const LedgerReport& other);
};

// Owns the number of uses and of updates of each row of the counting tables, by the pushes that were acknowledged.
// Invariant: a row of a server that has applied exactly these pushes has the uses as the value of all its weights, the
// updates as its version, and exists if it has any. Knows nothing of servers. Thread safety: none.
class RowLedger {
 public:
  explicit RowLedger(size_t tables) : tables_(tables) {}

  // Adds one update of each row that is used.
  void Add(const RowUses& uses);
  void Add(const RowLedger& other);

  // Returns the ids of the table's rows that were ever used, in no particular order.
  std::vector<uint64_t> Ids(size_t table) const;
  uint64_t UsesOf(size_t table, uint64_t id) const;
  // Largest number of uses of any row.
  uint64_t most_uses() const { return most_uses_; }

  // `table` is an index of CountingTables. A row that the ledger does not know must not exist.
  LedgerReport Compare(size_t table, const ReadRows& got) const;

 private:
  struct Row {
    uint64_t uses = 0;
    uint64_t updates = 0;
  };
  std::vector<absl::flat_hash_map<uint64_t, Row>> tables_;
  uint64_t most_uses_ = 0;
};

}  // namespace ballast
