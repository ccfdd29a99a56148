// SPDX-License-Identifier: Apache-2.0
#include "worker/rows/saved_rows.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<SavedRows>> SavedRows::Make(std::vector<LoadedTable> tables) {
  std::unique_ptr<SavedRows> rows(new SavedRows(std::move(tables)));
  for (const LoadedTable& table : rows->tables_) {
    std::optional<RowInitializer>& initial = rows->initial_.emplace_back();
    if (table.spec.has_admission()) continue;
    absl::StatusOr<RowInitializer> made =
        RowInitializer::Make(table.spec.initializer(), table.spec.seed(), table.spec.name());
    if (!made.ok()) return made.status();
    initial = *std::move(made);
  }
  rows->values_.resize(rows->tables_.size());
  rows->views_.resize(rows->tables_.size());
  return rows;
}

absl::StatusOr<absl::Span<const RowsView>> SavedRows::FetchForEvaluation(uint64_t, absl::Span<const BatchRows> rows) {
  if (rows.size() != tables_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("got rows of ", rows.size(), " tables, want ", tables_.size()));
  }
  for (size_t t = 0; t < tables_.size(); ++t) {
    const size_t dim = tables_[t].spec.dim();
    std::vector<float>& values = values_[t];
    values.resize(rows[t].ids.size() * dim);
    for (size_t i = 0; i < rows[t].ids.size(); ++i) {
      const absl::Span<float> row = absl::MakeSpan(values).subspan(i * dim, dim);
      if (tables_[t].rows->Find(rows[t].ids[i], row)) continue;
      if (initial_[t].has_value()) {
        initial_[t]->Fill(rows[t].ids[i], row);
      } else {
        std::fill(row.begin(), row.end(), 0.0f);
      }
    }
    views_[t] = {values, rows[t].ends, rows[t].places};
  }
  return absl::MakeConstSpan(views_);
}

}  // namespace ballast
