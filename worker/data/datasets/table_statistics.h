// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/data/datasets/csv_row.h"
#include "worker/data/datasets/table_schema.h"

namespace ballast {

// Checks a text before it becomes a category or a class.
CsvFault::Kind CheckTableText(absl::string_view text);

// Collects, from the features of training examples, what a schema needs: mean and standard deviation of each column of
// numbers, the texts of each column of categories or looked-up ids, and which columns miss values. Sums in double in
// the order of the calls, so that the result has the same bits on every machine. Thread safety: none.
class TableStatistics {
 public:
  explicit TableStatistics(const TableSchema& schema);

  // `column` is an index in the schema.
  void Number(size_t column, double value);
  CsvFault::Kind Text(size_t column, absl::string_view text);
  void Missing(size_t column) { ++columns_[column].missing; }

  // Sets the columns of the schema. With `per_column`, also their normalization. INVALID_ARGUMENT for a column without
  // any value.
  absl::Status Store(bool per_column, TableSchema& schema) const;

 private:
  struct Column {
    uint64_t numbers = 0;
    uint64_t missing = 0;
    // Sums are of the differences from the first number, so that variances of large numbers keep their digits.
    double first = 0;
    double sum = 0;
    double squares = 0;
    bool varies = false;
    size_t max_texts = kMaxTableTexts;
    std::set<std::string, std::less<>> texts;
  };

  std::vector<Column> columns_;
};

}  // namespace ballast
