// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/data/datasets/dataset.h"

namespace ballast {

// The rows of one table that a batch uses.
struct BatchRows {
  // Distinct ids, in the order of their first use.
  std::vector<uint64_t> ids;
  // Number of times that the batch uses each id, at most 65535.
  std::vector<uint16_t> uses;
  // End of each bag in `places`, [examples, fields of the table], row-major.
  std::vector<uint32_t> ends;
  // Index in `ids` of each use, bag by bag.
  std::vector<uint32_t> places;
};

// Finds the distinct ids of a batch for each table. Keeps its memory from batch to batch.
// Thread safety: none.
class RowIndexer {
 public:
  // `fields` has the indices of the fields of ids that each table uses, of `all_fields` in the data.
  RowIndexer(std::vector<std::vector<size_t>> fields, size_t all_fields);

  // Replaces the contents of `tables` by the rows that bags use.
  void Index(const IdBags& bags, std::vector<BatchRows>& tables);

 private:
  // An entry of the hash table. A place of 0 is empty; otherwise it is one more than an index in BatchRows::ids.
  struct Entry {
    uint64_t id = 0;
    uint32_t place = 0;
  };

  void IndexTable(const IdBags& bags, absl::Span<const size_t> fields, BatchRows& rows);
  // Returns the id's index in rows.ids, where it adds the id if it is new.
  uint32_t PlaceOf(uint64_t id, BatchRows& rows);

  const std::vector<std::vector<size_t>> fields_;
  const size_t all_fields_;
  // A power of two, at least twice the ids of the batch. Linear probing.
  std::vector<Entry> entries_;
};

}  // namespace ballast
