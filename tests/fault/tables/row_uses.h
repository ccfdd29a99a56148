// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "ballast/v1/table.pb.h"
#include "common/tables/placed_table.h"

namespace ballast {

// The counting tables, of 1 and of 16 weights: with sgd at learning rate 1 and zeros at first, each use of a row, a
// gradient of -1, adds 1 to all its weights. fp32 counts exactly up to kMaxUses.
std::vector<v1::TableSpec> CountingTables();
inline constexpr uint64_t kMaxUses = uint64_t{1} << 24;

// Ids that one push uses, by table in the order of CountingTables; an id appears once per use.
using RowUses = std::vector<std::vector<uint64_t>>;

// Identifies a push: `life` counts the processes that were this worker.
struct PushKey {
  uint32_t worker = 0;
  uint64_t life = 0;
  uint64_t number = 0;
};

// Draws the rows that pushes use: a function of the seed and the push, so that a ledger needs only the push's number.
// A few rows are in most pushes and most rows are rare (Zipf's law); which rows are frequent changes with the push's
// number. Every eighth push is large enough for shared memory. Thread safety: const.
class RowDraw {
 public:
  // `rows` per table, spread over that many servers.
  RowDraw(uint64_t seed, uint32_t rows, uint32_t servers);

  uint32_t rows() const { return rows_; }
  // Id of a table's row of that number, below `rows`. Row 0 has the smallest id, row 1 the largest.
  static uint64_t IdOf(uint32_t row);

  RowUses Uses(const PushKey& key) const;

  // Returns a row of the first table on that server that no other push uses. After a worker's death it tells if the
  // server had applied the push's message, because a server applies a message whole.
  uint64_t MarkOf(const PushKey& key, uint32_t server) const;
  // Adds the marks of all servers.
  void Mark(const PushKey& key, RowUses& uses) const;
  // Returns the uses of rows on that server.
  RowUses OnServer(const RowUses& uses, uint32_t server) const;
  uint32_t servers() const { return servers_; }

 private:
  uint32_t OwnerOf(size_t table, uint64_t id) const;

  const uint64_t seed_;
  const uint32_t rows_, servers_;
  std::vector<PlacedTable> tables_;
};

}  // namespace ballast
