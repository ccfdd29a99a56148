// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/table_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/data/permutation.h"

namespace ballast {
namespace {

// Delimiters that OneColumn looks for.
constexpr absl::string_view kDelimiters = ";\t|,";
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

bool IsBlank(absl::string_view row) { return absl::StripAsciiWhitespace(row).empty(); }

// Returns the first rows of a file as texts, without the rest of the file.
std::vector<std::vector<std::string>> FirstRows(const std::string& path, const DatasetOptions& options, char delimiter,
                                                size_t count) {
  std::vector<std::vector<std::string>> rows;
  const auto take = [&](absl::string_view row, uint64_t) -> absl::StatusOr<bool> {
    if (IsBlank(row)) return false;
    absl::StatusOr<std::vector<std::string>> texts = CsvTexts(row, delimiter);
    if (!texts.ok()) return texts.status();
    rows.push_back(*std::move(texts));
    if (rows.size() == count) return absl::CancelledError("has read enough");
    return true;
  };
  (void)OpenRows(path, options, take, [&](absl::string_view text) { return CsvRowEnd(text, delimiter); });
  return rows;
}

absl::Status OneColumn(absl::string_view row, char delimiter) {
  std::string advice;
  for (const char other : kDelimiters) {
    const auto count = std::count(row.begin(), row.end(), other);
    if (count == 0 || !advice.empty()) continue;
    const std::string name = absl::CEscape(absl::string_view(&other, 1));
    advice = absl::StrCat("; the row has ", count, " \"", name, "\": set delimiter: \"", name, "\"");
  }
  return absl::InvalidArgumentError(absl::StrCat("has 1 column, want at least 2 with \"",
                                                 absl::CEscape(absl::string_view(&delimiter, 1)), "\" between them",
                                                 advice));
}

}  // namespace

std::optional<size_t> FindTableText(const std::vector<std::string>& sorted, absl::string_view text) {
  const auto found = std::lower_bound(sorted.begin(), sorted.end(), text);
  if (found == sorted.end() || *found != text) return std::nullopt;
  return found - sorted.begin();
}

TableCheck::TableCheck(const v1::Csv& csv, const DatasetOptions& options, const std::string& path)
    : csv_(csv), options_(options), path_(path) {}

absl::StatusOr<bool> TableCheck::Begin(absl::string_view row) {
  begun_ = true;
  absl::StatusOr<std::vector<std::string>> texts = CsvTexts(row, delimiter());
  if (!texts.ok()) return texts.status();
  // A quoted field may hold "\r\n".
  const bool has_return = row.find('\r') != row.npos && row.find('\n') == row.npos;
  if (has_return && FirstRows(path_, options_, delimiter(), 2).size() < 2) {
    return absl::InvalidArgumentError("is the only line, want lines that end with \"\\n\" or \"\\r\\n\", not \"\\r\"");
  }
  const size_t fields = texts->size();
  if (!csv_.header()) texts->clear();
  if (options_.schema != nullptr) {
    schema_ = *options_.schema;
  } else {
    if (fields < 2) return OneColumn(row, delimiter());
    absl::StatusOr<TableSchema> schema = NewTableSchema(csv_, *texts, fields);
    if (!schema.ok()) return schema.status();
    schema_ = *std::move(schema);
    if (options_.normalization.per_column() || schema_.missing != v1::REFUSE || csv_.categories_size() > 0 ||
        csv_.looked_up_size() > 0) {
      statistics_.emplace(schema_);
    }
  }
  absl::StatusOr<CsvLayout> layout = MatchTableSchema(schema_, *std::move(texts), fields, options_.labels_optional);
  if (!layout.ok()) {
    const bool other_delimiter = fields == 1 && row.find_first_of(kDelimiters) != row.npos;
    return other_delimiter ? OneColumn(row, delimiter()) : layout.status();
  }
  layout_ = *std::move(layout);
  layout_.format.delimiter = delimiter();
  return !csv_.header();
}

absl::StatusOr<bool> TableCheck::Check(absl::string_view row, uint64_t line) {
  if (IsBlank(row)) return false;
  if (!begun_) {
    const absl::StatusOr<bool> is_example = Begin(row);
    if (!is_example.ok() || !*is_example) return is_example;
  }
  line_ = line;
  label_ = kNaN;
  const CsvFault fault = ParseCsvRow(row, layout_.format, *this);
  if ((fault.kind == CsvFault::kNumber || fault.kind == CsvFault::kUnknown) && BeginsWithNames()) {
    return absl::InvalidArgumentError("seems to hold column names: set header: true");
  }
  if (fault.kind != CsvFault::kNone) {
    return DescribeCsvFault(fault, layout_, schema_, options_.schema != nullptr, row);
  }
  ++examples_;
  if (!std::isnan(label_)) extremes_.Add(label_, line);
  return true;
}

bool TableCheck::BeginsWithNames() const {
  if (examples_ > 0 || csv_.header()) return false;
  const std::vector<std::vector<std::string>> rows = FirstRows(path_, options_, delimiter(), 2);
  return rows.size() == 2 && LooksLikeHeader(rows[0], rows[1]);
}

void TableCheck::Number(size_t field, double value) {
  if (field == layout_.label) {
    label_ = static_cast<float>(value);
  } else if (statistics_.has_value()) {
    statistics_->Number(layout_.columns[field], value);
  }
}

CsvFault::Kind TableCheck::TextLabel(absl::string_view text) {
  if (options_.schema != nullptr) {
    const std::optional<size_t> found = FindTableText(schema_.classes, text);
    if (!found.has_value()) return options_.labels_optional ? CsvFault::kNone : CsvFault::kUnknown;
    label_ = *found;
    return CsvFault::kNone;
  }
  if (classes_.find(text) != classes_.end()) return CsvFault::kNone;
  if (classes_.size() == kMaxTableTexts) return CsvFault::kTooMany;
  const CsvFault::Kind fault = CheckTableText(text);
  if (fault == CsvFault::kNone) classes_.emplace(text, line_);
  return fault;
}

CsvFault::Kind TableCheck::Text(size_t field, absl::string_view text) {
  if (field == layout_.label) return TextLabel(text);
  const size_t column = layout_.columns[field];
  if (!statistics_.has_value() || schema_.columns[column].kind == TableColumn::Kind::kHashed) return CsvFault::kNone;
  if (!schema_.columns[column].has_ids()) return statistics_->Text(column, text);
  CsvFault::Kind fault = CsvFault::kNone;
  VisitIds(text, schema_.id_separator, [&](absl::string_view id) {
    if (fault == CsvFault::kNone) fault = statistics_->Text(column, id);
  });
  return fault;
}

CsvFault::Kind TableCheck::Missing(size_t field) {
  if (field == layout_.label) return options_.labels_optional ? CsvFault::kNone : CsvFault::kMissing;
  if (schema_.columns[layout_.columns[field]].has_ids()) return CsvFault::kNone;
  if (schema_.missing == v1::REFUSE) return CsvFault::kMissing;
  if (statistics_.has_value()) statistics_->Missing(layout_.columns[field]);
  return CsvFault::kNone;
}

absl::Status TableCheck::Finish(const TextRows& rows) {
  if (options_.schema != nullptr) return absl::OkStatus();
  if (schema_.text_labels && classes_.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("all labels are ", QuotedText(classes_.begin()->first), ", want at least 2 classes"));
  }
  for (const auto& [text, line] : classes_) {
    extremes_.Add(schema_.classes.size(), line);
    schema_.classes.push_back(text);
  }
  const bool per_column = options_.normalization.per_column();
  if (!per_column) {
    const double stddev = options_.normalization.has_stddev() ? options_.normalization.stddev() : 1;
    for (TableColumn& column : schema_.columns) {
      column.mean = options_.normalization.mean();
      column.stddev = stddev;
    }
  }
  if (!statistics_.has_value()) return absl::OkStatus();
  const std::vector<uint64_t> held_out = HeldOutExamples(rows.size(), options_.test_share, options_.seed);
  if (!held_out.empty()) {
    // Which examples train is known only now that all are counted.
    statistics_.emplace(schema_);
    auto next = held_out.begin();
    for (uint64_t i = 0; i < rows.size(); ++i) {
      if (next != held_out.end() && *next == i) {
        ++next;
        continue;
      }
      const absl::string_view row = rows.Row(i);
      if (const CsvFault fault = ParseCsvRow(row, layout_.format, *this); fault.kind != CsvFault::kNone) {
        return DescribeCsvFault(fault, layout_, schema_, /*given=*/false, row);
      }
    }
  }
  return statistics_->Store(per_column, schema_);
}

std::vector<PlacedLabel> TableCheck::ExtremeLabels() const {
  return extremes_.Describe([&](uint64_t line) { return absl::StrCat(path_, ":", line); });
}

}  // namespace ballast
