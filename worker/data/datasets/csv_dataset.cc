// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/datasets/example_values.h"
#include "worker/data/datasets/text_rows.h"

namespace ballast {
namespace {

// Layout of a row.
struct RowFormat {
  char delimiter = ',';
  size_t columns = 0;
  size_t label_column = 0;

  bool IsBlank(char c) const { return (c == ' ' || c == '\t') && c != delimiter; }
  const char* SkipBlanks(const char* at, const char* end) const {
    while (at != end && IsBlank(*at)) ++at;
    return at;
  }
};

absl::Status WrongColumns(absl::string_view line, const RowFormat& format) {
  return absl::InvalidArgumentError(absl::StrCat("has ", 1 + std::count(line.begin(), line.end(), format.delimiter),
                                                 " columns, want ", format.columns));
}

// Parses all columns of a row into `values`, which must have format.columns elements.
absl::Status ParseRow(absl::string_view line, const RowFormat& format, absl::Span<float> values) {
  const char* at = line.data();
  const char* const end = at + line.size();
  for (size_t column = 0; column < format.columns; ++column) {
    const char* const begin = format.SkipBlanks(at, end);
    const TextNumber number = ParseNumber(begin, end);
    at = format.SkipBlanks(number.end, end);
    const bool whole = at == end || *at == format.delimiter;
    if (!whole || std::isnan(number.value)) {
      const char* const stop = std::find(begin, end, format.delimiter);
      return NotANumber(absl::StrCat("column ", column + 1), {begin, size_t(stop - begin)});
    }
    values[column] = number.value;
    if ((at == end) != (column + 1 == format.columns)) return WrongColumns(line, format);
    if (at != end) ++at;
  }
  return absl::OkStatus();
}

// Sets the number of columns from the first row.
absl::Status SetColumns(absl::string_view line, int64_t label_column, RowFormat& format) {
  format.columns = 1 + std::count(line.begin(), line.end(), format.delimiter);
  const int64_t columns = format.columns;
  if (columns < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("has 1 column, want at least 2 with \"", std::string(1, format.delimiter), "\" between them"));
  }
  if (label_column < -columns || label_column >= columns) {
    return absl::InvalidArgumentError(absl::StrCat("has ", columns, " columns, label_column is ", label_column,
                                                   ", want ", -columns, " to ", columns - 1));
  }
  format.label_column = label_column < 0 ? columns + label_column : label_column;
  return absl::OkStatus();
}

class CsvDataset : public Dataset {
 public:
  CsvDataset(TextRows rows, RowFormat format, const Normalizer& normalizer, std::vector<PlacedLabel> extremes)
      : rows_(std::move(rows)), format_(format), normalizer_(normalizer), extremes_(std::move(extremes)) {}

  uint64_t size() const override { return rows_.size(); }
  uint64_t features() const override { return format_.columns - 1; }
  std::vector<PlacedLabel> ExtremeLabels() const override { return extremes_; }

  absl::Status Read(absl::Span<const uint64_t> indices, absl::Span<float> features,
                    absl::Span<float> labels) const override {
    if (absl::Status status = CheckRead(*this, indices, features, labels); !status.ok()) return status;
    std::vector<float> values(format_.columns);
    const auto label = values.begin() + format_.label_column;
    auto out = features.begin();
    for (size_t i = 0; i < indices.size(); ++i) {
      absl::Status status = ParseRow(rows_.Row(indices[i]), format_, absl::MakeSpan(values));
      if (!status.ok()) {
        return absl::DataLossError(
            absl::StrCat("example ", indices[i], " has changed in the file since it was opened: ", status.message()));
      }
      labels[i] = *label;
      out = std::copy(values.begin(), label, out);
      out = std::copy(label + 1, values.end(), out);
    }
    normalizer_.Apply(features);
    return absl::OkStatus();
  }

 private:
  const TextRows rows_;
  const RowFormat format_;
  const Normalizer normalizer_;
  const std::vector<PlacedLabel> extremes_;
};

}  // namespace

// Opens a CSV file of unquoted numbers. Checks every line once and skips blank lines.
absl::StatusOr<std::unique_ptr<Dataset>> OpenCsv(const v1::DataSource& source, const DatasetOptions& options) {
  const v1::Csv& csv = source.csv();
  RowFormat format;
  if (!csv.delimiter().empty()) format.delimiter = csv.delimiter()[0];
  std::vector<float> values;
  LabelExtremes extremes;
  bool header_to_come = csv.header();
  const auto check = [&](absl::string_view line, uint64_t number) -> absl::StatusOr<bool> {
    if (absl::StripAsciiWhitespace(line).empty()) return false;
    if (std::exchange(header_to_come, false)) return false;
    const bool first = format.columns == 0;
    if (first) {
      absl::Status status = SetColumns(line, csv.label_column(), format);
      if (!status.ok()) return status;
      values.resize(format.columns);
    }
    absl::Status status = ParseRow(line, format, absl::MakeSpan(values));
    if (!status.ok() && first && number == 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(status.message(), "; if the first line holds column names, set header: true"));
    }
    if (!status.ok()) return status;
    extremes.Add(values[format.label_column], number);
    return true;
  };
  const std::string path = DataPath(options.base_folder, csv.path());
  absl::StatusOr<TextRows> rows = TextRows::Open(path, check);
  if (!rows.ok()) return rows.status();
  const auto where = [&](uint64_t line) { return absl::StrCat(path, ":", line); };
  return std::make_unique<CsvDataset>(*std::move(rows), format, Normalizer(options.normalization),
                                      extremes.Describe(where));
}

}  // namespace ballast
