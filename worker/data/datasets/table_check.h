// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/datasets/csv_layout.h"
#include "worker/data/datasets/csv_row.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/datasets/example_values.h"
#include "worker/data/datasets/table_schema.h"
#include "worker/data/datasets/table_statistics.h"
#include "worker/data/files/text_rows.h"

namespace ballast {

// Checks every row of a CSV file while it is opened, finds its columns and, unless the options give a schema,
// determines it. Thread safety: none.
class TableCheck {
 public:
  // The arguments must outlive this.
  TableCheck(const v1::Csv& csv, const DatasetOptions& options, const std::string& path);

  // A TextRows::RowCheck.
  absl::StatusOr<bool> Check(absl::string_view row, uint64_t line);
  // Completes the schema. `rows` are those that Check accepted.
  absl::Status Finish(const TextRows& rows);

  const TableSchema& schema() const { return schema_; }
  const CsvLayout& layout() const { return layout_; }
  char delimiter() const { return csv_.delimiter().empty() ? ',' : csv_.delimiter()[0]; }
  std::vector<PlacedLabel> ExtremeLabels() const;

  // The sink of ParseCsvRow. kUnknown: the schema's classes lack the label.
  void Number(size_t field, double value);
  CsvFault::Kind Text(size_t field, absl::string_view text);
  CsvFault::Kind Missing(size_t field);

 private:
  // Takes the first row of the file, and returns whether it is an example.
  absl::StatusOr<bool> Begin(absl::string_view row);
  // Returns whether the row that is being checked is the first and, judging by the second, a forgotten header.
  bool BeginsWithNames() const;
  CsvFault::Kind TextLabel(absl::string_view text);

  const v1::Csv& csv_;
  const DatasetOptions& options_;
  const std::string& path_;
  bool begun_ = false;
  uint64_t examples_ = 0;
  TableSchema schema_;
  CsvLayout layout_;
  // Absent if the schema needs none.
  std::optional<TableStatistics> statistics_;
  // The texts of labels, each with its first line, if the schema is determined from this file.
  std::map<std::string, uint64_t, std::less<>> classes_;
  LabelExtremes extremes_;
  // State of the row that is being checked. The label is NaN if it has no number yet.
  uint64_t line_ = 0;
  float label_ = 0;
};

// Returns the position of a text in a list in byte order.
std::optional<size_t> FindTableText(const std::vector<std::string>& sorted, absl::string_view text);

}  // namespace ballast
