// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/job.pb.h"

namespace ballast {

// A column of a table, and the features or the field of ids that it becomes.
struct TableColumn {
  enum class Kind : uint8_t { kNumber, kCategory, kLabel, kIgnored, kHashed, kLookedUp };

  // The name in the first row; empty if the table has no header.
  std::string name;
  Kind kind = Kind::kNumber;
  // The feature of a number x is (x - mean) / stddev, or 0 if stddev is 0.
  double mean = 0;
  double stddev = 1;
  // Stands for a missing number, before it is normalized.
  double fill = 0;
  // True if another feature, after those of all columns, is 1 for a missing value and otherwise 0.
  bool indicator = false;
  // The texts of a category in byte order. Each is a feature: 1 for the row's own text, otherwise 0. All are 0 for a
  // missing or unknown text.
  std::vector<std::string> categories;
  // Position of a column of ids, kHashed or kLookedUp, among the fields of ids. Each value has an id, or several
  // between TableSchema::id_separator; see Csv in job.proto.
  uint64_t field = 0;
  // The texts of kLookedUp in byte order.
  std::vector<std::string> texts;

  bool has_ids() const { return kind == Kind::kHashed || kind == Kind::kLookedUp; }
};

// Describes how the rows of a table become examples: everything that was determined from the training data, so that
// other files become examples in the same way. Stored as JSON in the metadata of a model, under "table".
// Thread safety: immutable.
struct TableSchema {
  // In the order of the training file. One is the label; at least one gives a feature or ids.
  std::vector<TableColumn> columns;
  // False if the training file had no header: columns are then found by position instead of name.
  bool has_names = false;
  v1::MissingValues missing = v1::REFUSE;
  // The labels are texts, and the label of a row is the position of its text in `classes`, which are in byte order.
  bool text_labels = false;
  std::vector<std::string> classes;

  // Separates the ids in a column of ids; empty: each value is one id.
  std::string id_separator;

  // Number of features of an example.
  uint64_t features() const;
  // Names of the fields of ids, in their order: that of the column, or its number without a name.
  std::vector<std::string> IdFields() const;
  // Index of the label's column.
  size_t label() const;

  // Round-trips exactly.
  std::string ToJson() const;
  // Trusts nothing in the text: INVALID_ARGUMENT names the violation.
  static absl::StatusOr<TableSchema> FromJson(absl::string_view json);
};

// Limits of the texts of one column of categories or labels: their number, and the length of each.
constexpr size_t kMaxTableTexts = 65536;
constexpr size_t kMaxTableTextBytes = 256;
// Limit on the texts of a column that is looked up, which need no features.
constexpr size_t kMaxLookedUpTexts = 1 << 20;

// Returns "3 classes: setosa, versicolor, virginica", with at most ten names.
std::string ClassesText(const TableSchema& schema);

// Returns a text for an error message, in quotes and at most 60 bytes long.
std::string QuotedText(absl::string_view text);

// Returns `column "age"`, or `column 3 (counted from 0)` for a column without name.
std::string ColumnText(absl::string_view name, size_t column);

}  // namespace ballast
