// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/tables/row_ledger.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ballast {

void LedgerReport::Add(const LedgerReport& other) {
  rows_checked += other.rows_checked;
  rows_wrong += other.rows_wrong;
  if (first_wrong.empty()) first_wrong = other.first_wrong;
}

void RowLedger::Add(const RowUses& uses) {
  for (size_t table = 0; table < uses.size(); ++table) {
    absl::flat_hash_set<uint64_t> updated;
    for (const uint64_t id : uses[table]) {
      Row& row = tables_[table][id];
      ++row.uses;
      row.updates += updated.insert(id).second;
      most_uses_ = std::max(most_uses_, row.uses);
    }
  }
}

void RowLedger::Add(const RowLedger& other) {
  for (size_t table = 0; table < tables_.size(); ++table) {
    for (const auto& [id, more] : other.tables_[table]) {
      Row& row = tables_[table][id];
      row.uses += more.uses;
      row.updates += more.updates;
      most_uses_ = std::max(most_uses_, row.uses);
    }
  }
}

std::vector<uint64_t> RowLedger::Ids(size_t table) const {
  std::vector<uint64_t> ids;
  ids.reserve(tables_[table].size());
  for (const auto& [id, row] : tables_[table]) ids.push_back(id);
  return ids;
}

uint64_t RowLedger::UsesOf(size_t table, uint64_t id) const {
  const auto found = tables_[table].find(id);
  return found == tables_[table].end() ? 0 : found->second.uses;
}

LedgerReport RowLedger::Compare(size_t table, const ReadRows& got) const {
  const v1::TableSpec spec = CountingTables()[table];
  LedgerReport report;
  for (size_t i = 0; i < got.ids.size(); ++i) {
    const auto found = tables_[table].find(got.ids[i]);
    const Row want = found == tables_[table].end() ? Row() : found->second;
    const absl::Span<const float> values = got.values.subspan(i * spec.dim(), spec.dim());
    const bool right = std::all_of(values.begin(), values.end(),
                                   [&](float value) { return value == static_cast<float>(want.uses); }) &&
                       got.versions[i] == want.updates && (got.present[i] != 0) == (want.updates > 0);
    ++report.rows_checked;
    if (right) continue;
    if (report.rows_wrong++ > 0) continue;
    report.first_wrong =
        absl::StrCat("table \"", spec.name(), "\" row ", got.ids[i], ": got values ", absl::StrJoin(values, " "),
                     ", version ", got.versions[i], got.present[i] != 0 ? "" : ", absent", "; want values ", want.uses,
                     ", version ", want.updates, want.updates > 0 ? "" : ", absent");
  }
  return report;
}

}  // namespace ballast
