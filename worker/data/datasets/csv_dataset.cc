// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/text/json_fields.h"
#include "worker/data/datasets/csv_layout.h"
#include "worker/data/datasets/csv_row.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/datasets/example_values.h"
#include "worker/data/datasets/row_ids.h"
#include "worker/data/datasets/table_check.h"
#include "worker/data/files/text_rows.h"

namespace ballast {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The features that a field becomes.
struct FieldTarget {
  // The feature of a number, or the first of a category.
  uint64_t feature = 0;
  uint64_t indicator = 0;
  double mean = 0;
  // Infinite for a column whose features are all 0.
  double stddev = 1;

  float Normalize(double x) const { return static_cast<float>((x - mean) / stddev); }
};

std::vector<FieldTarget> Targets(const TableSchema& schema, const CsvLayout& layout) {
  std::vector<FieldTarget> by_column(schema.columns.size());
  uint64_t feature = 0;
  for (size_t i = 0; i < by_column.size(); ++i) {
    const TableColumn& column = schema.columns[i];
    by_column[i].feature = feature;
    by_column[i].mean = column.mean;
    by_column[i].stddev = column.stddev > 0 ? column.stddev : std::numeric_limits<double>::infinity();
    if (column.kind == TableColumn::Kind::kNumber) ++feature;
    feature += column.categories.size();
  }
  for (size_t i = 0; i < by_column.size(); ++i) {
    if (schema.columns[i].indicator) by_column[i].indicator = feature++;
  }
  std::vector<FieldTarget> targets(layout.columns.size());
  for (size_t i = 0; i < targets.size(); ++i) {
    if (layout.columns[i] != CsvLayout::kNone) targets[i] = by_column[layout.columns[i]];
  }
  return targets;
}

uint64_t IdOf(const TableColumn& column, absl::string_view text) {
  if (column.kind == TableColumn::Kind::kHashed) return CategoryRowId(text, column.field);
  const std::optional<size_t> found = FindTableText(column.texts, text);
  return CategoryRowId(found.has_value() ? uint64_t{*found} + 1 : uint64_t{0}, column.field);
}

// The sink of ParseCsvRow that writes an example. Thread safety: none.
struct ExampleWriter {
  const TableSchema& schema;
  const CsvLayout& layout;
  const std::vector<FieldTarget>& targets;
  float* features;
  BagsOfExample& bags;
  float label = kNaN;

  const TableColumn& column(size_t field) const { return schema.columns[layout.columns[field]]; }

  void Number(size_t field, double value) {
    if (field == layout.label) {
      label = static_cast<float>(value);
    } else {
      features[targets[field].feature] = targets[field].Normalize(value);
    }
  }

  CsvFault::Kind Text(size_t field, absl::string_view text) {
    const bool is_label = field == layout.label;
    if (!is_label && column(field).has_ids()) {
      VisitIds(text, schema.id_separator,
               [&](absl::string_view id) { bags.Add(column(field).field, IdOf(column(field), id)); });
      return CsvFault::kNone;
    }
    const std::optional<size_t> found = FindTableText(is_label ? schema.classes : column(field).categories, text);
    if (!found.has_value()) return CsvFault::kNone;
    if (is_label) {
      label = *found;
    } else {
      features[targets[field].feature + *found] = 1;
    }
    return CsvFault::kNone;
  }

  CsvFault::Kind Missing(size_t field) {
    if (field == layout.label || column(field).has_ids()) return CsvFault::kNone;
    if (schema.missing == v1::REFUSE) return CsvFault::kMissing;
    const FieldTarget& target = targets[field];
    if (column(field).kind == TableColumn::Kind::kNumber) {
      features[target.feature] = target.Normalize(column(field).fill);
    }
    if (column(field).indicator) features[target.indicator] = 1;
    return CsvFault::kNone;
  }
};

class CsvDataset : public Dataset {
 public:
  CsvDataset(TextRows rows, const TableCheck& check, bool labels_optional)
      : rows_(std::move(rows)),
        schema_(check.schema()),
        layout_(check.layout()),
        targets_(Targets(schema_, layout_)),
        features_(schema_.features()),
        id_fields_(schema_.IdFields()),
        labels_optional_(labels_optional),
        extremes_(check.ExtremeLabels()) {}

  uint64_t size() const override { return rows_.size(); }
  uint64_t features() const override { return features_; }
  absl::Span<const std::string> id_fields() const override { return id_fields_; }
  const TableSchema* schema() const override { return &schema_; }
  bool has_labels() const override { return layout_.label != CsvLayout::kNone; }
  std::vector<PlacedLabel> ExtremeLabels() const override { return extremes_; }

  absl::Status Read(absl::Span<const uint64_t> indices, absl::Span<float> features, absl::Span<float> labels,
                    IdBags* ids) const override {
    if (absl::Status status = CheckRead(*this, indices, features, labels); !status.ok()) return status;
    ClearBags(ids);
    // Rows write only those features of categories and indicators that are not 0.
    std::fill(features.begin(), features.end(), 0.0f);
    BagsOfExample bags;
    for (size_t i = 0; i < indices.size(); ++i) {
      ExampleWriter writer = {schema_, layout_, targets_, features.data() + i * features_, bags};
      const absl::string_view row = rows_.Row(indices[i]);
      CsvFault fault = ParseCsvRow(row, layout_.format, writer);
      const bool lacks_label = std::isnan(writer.label) && has_labels() && !labels_optional_;
      if (fault.kind == CsvFault::kNone && lacks_label) fault = {CsvFault::kUnknown, layout_.label, "?"};
      if (fault.kind != CsvFault::kNone) {
        return absl::DataLossError(absl::StrCat("example ", indices[i],
                                                " has changed in the file since it was opened: ",
                                                DescribeCsvFault(fault, layout_, schema_, true, row).message()));
      }
      labels[i] = writer.label;
      bags.MoveTo(id_fields_.size(), ids);
    }
    return absl::OkStatus();
  }

 private:
  const TextRows rows_;
  const TableSchema schema_;
  const CsvLayout layout_;
  // The target of each field.
  const std::vector<FieldTarget> targets_;
  const uint64_t features_;
  const std::vector<std::string> id_fields_;
  const bool labels_optional_;
  const std::vector<PlacedLabel> extremes_;
};

// Refuses a table whose model could not be read again, before it is trained. Readers of safetensors take headers of up
// to 100 MB, which hold other texts too.
absl::Status CheckDescription(const TableSchema& schema) {
  constexpr size_t kMaxBytes = 90'000'000;
  const size_t bytes = JsonLine(schema.ToJson()).size();
  if (bytes <= kMaxBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("its ", schema.columns.size(), " columns take ", bytes,
                                                 " bytes in the description of the model, want at most ", kMaxBytes));
}

}  // namespace

// Opens a table: rows of numbers and text. Checks every row once and skips blank ones.
absl::StatusOr<std::unique_ptr<Dataset>> OpenCsv(const v1::DataSource& source, const DatasetOptions& options) {
  const std::string path = DataPath(options.base_folder, source.csv().path());
  TableCheck check(source.csv(), options, path);
  absl::StatusOr<TextRows> rows = OpenRows(
      path, options, [&](absl::string_view row, uint64_t line) { return check.Check(row, line); },
      [delimiter = check.delimiter()](absl::string_view text) { return CsvRowEnd(text, delimiter); });
  if (!rows.ok()) return rows.status();
  absl::Status status = check.Finish(*rows);
  if (status.ok() && options.schema == nullptr) status = CheckDescription(check.schema());
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  }
  return std::make_unique<CsvDataset>(*std::move(rows), check, options.labels_optional);
}

}  // namespace ballast
