// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/watch/table_files.h"
#include "common/tables/row_initializer.h"
#include "worker/rows/row_source.h"

namespace ballast {

// The rows of tables in this process's memory, for predictions without servers. A row that does not exist has the value
// that servers would send: its initial value, or 0 in a table with admission. Thread safety: as RowSource; the tables
// may change meanwhile.
class SavedRows : public RowSource {
 public:
  // In the order of the model's tables. INVALID_ARGUMENT for a spec that no server accepts.
  static absl::StatusOr<std::unique_ptr<SavedRows>> Make(std::vector<LoadedTable> tables);

  absl::Span<const LoadedTable> tables() const { return tables_; }

  // `step` does not matter.
  absl::StatusOr<absl::Span<const RowsView>> FetchForEvaluation(uint64_t step,
                                                                absl::Span<const BatchRows> rows) override;

 private:
  explicit SavedRows(std::vector<LoadedTable> tables) : tables_(std::move(tables)) {}

  const std::vector<LoadedTable> tables_;
  // The initializer of each table; nullopt if missing rows are 0.
  std::vector<std::optional<RowInitializer>> initial_;
  // The values of each table, [rows, dim].
  std::vector<std::vector<float>> values_;
  std::vector<RowsView> views_;
};

}  // namespace ballast
