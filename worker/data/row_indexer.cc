// SPDX-License-Identifier: Apache-2.0
#include "worker/data/row_indexer.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace ballast {

RowIndexer::RowIndexer(std::vector<std::vector<size_t>> fields, size_t all_fields)
    : fields_(std::move(fields)), all_fields_(all_fields) {}

void RowIndexer::Index(const IdBags& bags, std::vector<BatchRows>& tables) {
  tables.resize(fields_.size());
  for (size_t t = 0; t < fields_.size(); ++t) IndexTable(bags, fields_[t], tables[t]);
}

void RowIndexer::IndexTable(const IdBags& bags, absl::Span<const size_t> fields, BatchRows& rows) {
  rows.ids.clear();
  rows.uses.clear();
  rows.ends.clear();
  rows.places.clear();
  const size_t size = std::bit_ceil(std::max<size_t>(16, 2 * bags.ids.size()));
  if (entries_.size() < size) entries_.resize(size);
  std::fill(entries_.begin(), entries_.end(), Entry());
  for (size_t example = 0; example < bags.ends.size(); example += all_fields_) {
    for (const size_t field : fields) {
      const size_t bag = example + field;
      for (size_t i = bag == 0 ? 0 : bags.ends[bag - 1]; i < bags.ends[bag]; ++i) {
        rows.places.push_back(PlaceOf(bags.ids[i], rows));
      }
      rows.ends.push_back(static_cast<uint32_t>(rows.places.size()));
    }
  }
}

uint32_t RowIndexer::PlaceOf(uint64_t id, BatchRows& rows) {
  const size_t mask = entries_.size() - 1;
  // Ids may be small numbers; the product's upper bits depend on all of them.
  size_t at = (id * 0x9E3779B97F4A7C15u) >> (64 - std::countr_zero(entries_.size()));
  while (entries_[at].place != 0 && entries_[at].id != id) at = (at + 1) & mask;
  Entry& entry = entries_[at];
  if (entry.place == 0) {
    rows.ids.push_back(id);
    rows.uses.push_back(0);
    entry = {id, static_cast<uint32_t>(rows.ids.size())};
  }
  uint16_t& uses = rows.uses[entry.place - 1];
  if (uses < std::numeric_limits<uint16_t>::max()) ++uses;
  return entry.place - 1;
}

}  // namespace ballast
