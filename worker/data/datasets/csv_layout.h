// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/datasets/csv_row.h"
#include "worker/data/datasets/table_schema.h"

namespace ballast {

// The fields of a CSV file's rows, and the columns of a schema that they are. Thread safety: immutable.
struct CsvLayout {
  static constexpr size_t kNone = ~size_t{0};

  CsvFormat format;
  // The index of each field's column; kNone if it is skipped.
  std::vector<size_t> columns;
  // Names in the first row; empty without a header.
  std::vector<std::string> names;
  // The field of the label; kNone if the file has none.
  size_t label = kNone;

  absl::string_view name(size_t field) const { return names.empty() ? absl::string_view() : names[field]; }
};

// Returns the schema of a training file whose rows have `fields` fields, without what its rows determine. `names` is
// its first row, or empty without a header.
absl::StatusOr<TableSchema> NewTableSchema(const v1::Csv& csv, const std::vector<std::string>& names, size_t fields);

// Finds the columns of a schema in a file: by name if both have names, else by position.
absl::StatusOr<CsvLayout> MatchTableSchema(const TableSchema& schema, std::vector<std::string> names, size_t fields,
                                           bool labels_optional);

// Returns the error for a row; advises on the field of the job file that would help. That is one of the training data,
// not of this file, if the schema is `given`.
absl::Status DescribeCsvFault(const CsvFault& fault, const CsvLayout& layout, const TableSchema& schema, bool given,
                              absl::string_view row);

// Returns whether the first row of a file holds column names, judging by the second.
bool LooksLikeHeader(const std::vector<std::string>& first, const std::vector<std::string>& second);

}  // namespace ballast
