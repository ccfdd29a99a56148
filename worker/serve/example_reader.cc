// SPDX-License-Identifier: Apache-2.0
#include "worker/serve/example_reader.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/job/job_file.h"
#include "common/text/json_fields.h"
#include "worker/data/datasets/example_values.h"
#include "worker/predict/prediction_data.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

// Length of a value that an error quotes.
constexpr size_t kMaxQuoted = 60;

// Stands for the path of a file in errors: "examples:3: has 38 fields".
constexpr char kName[] = "examples";

absl::Status WrongKind(size_t index, const Json& got, absl::string_view want) {
  return absl::InvalidArgumentError(absl::StrCat("example ", index, ": got ", got.type_name(), ", want ", want));
}

std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

// Returns a value as a field of CSV.
absl::StatusOr<std::string> CsvField(const Json& value) {
  if (value.is_null()) return std::string();
  if (value.is_string()) return Quoted(value.get<std::string>());
  if (value.is_number() || value.is_boolean()) return JsonLine(value);
  return absl::InvalidArgumentError(absl::StrCat("got ", value.type_name(), ", want a number, a text or null"));
}

}  // namespace

ExampleReader::ExampleReader(const ModelDescription& description, v1::DataSource source,
                             std::optional<TableSchema> schema)
    : source_(std::move(source)),
      normalization_(description.normalization),
      features_(description.features),
      width_(std::max<uint64_t>({1, features_ + description.id_fields.size(), schema ? schema->columns.size() : 0})),
      schema_(std::move(schema)) {}

absl::StatusOr<std::unique_ptr<ExampleReader>> ExampleReader::Create(const ModelDescription& description) {
  v1::DataSource source = TextFormat(description.source);
  VisitPaths("data", source, [](const std::string&, std::string& path) { path = kName; });
  if (source.format_case() == v1::DataSource::FORMAT_NOT_SET) {
    return absl::InvalidArgumentError("metadata \"source\": got nothing, want the format of the training data");
  }
  absl::StatusOr<std::optional<TableSchema>> schema = TrainedSchema(description);
  if (!schema.ok()) return schema.status();
  if (source.has_csv() && !schema->has_value()) {
    absl::StatusOr<TableSchema> plain = PlainSchema(description, source.csv().label_column());
    if (!plain.ok()) return plain.status();
    *schema = *std::move(plain);
  }
  return std::unique_ptr<ExampleReader>(new ExampleReader(description, std::move(source), *std::move(schema)));
}

std::string ExampleReader::format() const {
  return v1::DataSource::descriptor()->FindFieldByNumber(source_.format_case())->name();
}

absl::Status ExampleReader::CheckCount(uint64_t count) const {
  const uint64_t by_values = std::max<uint64_t>(kMaxValues / width_, 1);
  if (count > kMaxExamples || count > by_values) {
    return absl::InvalidArgumentError(
        absl::StrCat("got ", count, " examples, want at most ", std::min(kMaxExamples, by_values),
                     by_values < kMaxExamples ? absl::StrCat(", because each has ", width_, " values") : ""));
  }
  return absl::OkStatus();
}

absl::StatusOr<Examples> ExampleReader::ReadExactly(uint64_t count, absl::string_view text, bool header) const {
  absl::StatusOr<Examples> examples = Read(text, header);
  if (!examples.ok() || examples->count == count) return examples;
  return absl::InvalidArgumentError(
      absl::StrCat("got ", count, " examples, of which ", count - examples->count, " are blank, want no blank ones"));
}

absl::StatusOr<Examples> ExampleReader::Read(absl::string_view text, bool header) const {
  if (source_.has_idx()) {
    return absl::InvalidArgumentError("got lines, want lists of numbers, because the model was trained from IDX data");
  }
  v1::DataSource source = source_;
  if (source.has_csv()) source.mutable_csv()->set_header(header);
  DatasetOptions options{.normalization = normalization_, .labels_optional = true, .content = text};
  if (source.has_csv()) options.schema = &*schema_;
  const absl::StatusOr<std::unique_ptr<Dataset>> data = OpenDataset(source, options);
  if (!data.ok()) return data.status();
  Examples examples{.count = (*data)->size()};
  if ((*data)->features() != features_) {
    return absl::InvalidArgumentError(
        absl::StrCat("examples have ", (*data)->features(), " features, want ", features_));
  }
  std::vector<uint64_t> indices(examples.count);
  std::iota(indices.begin(), indices.end(), 0);
  examples.features.resize(examples.count * features_);
  std::vector<float> labels(examples.count);
  const absl::Status status =
      (*data)->Read(indices, absl::MakeSpan(examples.features), absl::MakeSpan(labels), &examples.ids);
  if (!status.ok()) return status;
  return examples;
}

absl::Status ExampleReader::AddLine(size_t example, const std::string& line, std::string& text) {
  if (line.empty() || line.find('\n') != line.npos) {
    return absl::InvalidArgumentError(absl::StrCat("example ", example, ": got ",
                                                   line.empty() ? "an empty text" : "a line break", ", want one line"));
  }
  absl::StrAppend(&text, line, "\n");
  return absl::OkStatus();
}

absl::StatusOr<Examples> ExampleReader::ReadLines(const google::protobuf::RepeatedPtrField<std::string>& lines) const {
  if (absl::Status status = CheckCount(lines.size()); !status.ok()) return status;
  std::string text;
  for (int i = 0; i < lines.size(); ++i) {
    if (absl::Status status = AddLine(i, lines[i], text); !status.ok()) return status;
  }
  return ReadExactly(lines.size(), text, /*header=*/false);
}

absl::StatusOr<Examples> ExampleReader::ReadJson(const Json& list) const {
  if (!list.is_array() || list.empty()) {
    return absl::InvalidArgumentError("got no list of examples, want a list of at least one");
  }
  if (absl::Status status = CheckCount(list.size()); !status.ok()) return status;
  if (list.front().is_object()) return ReadObjects(list);
  if (list.front().is_array()) return ReadLists(list);
  std::string text;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_string()) return WrongKind(i, list[i], i == 0 ? "a text, an object or a list" : "a text");
    if (absl::Status status = AddLine(i, list[i].get<std::string>(), text); !status.ok()) return status;
  }
  return ReadExactly(list.size(), text, /*header=*/false);
}

absl::StatusOr<Examples> ExampleReader::ReadObjects(const Json& list) const {
  if (!schema_.has_value() || !schema_->has_names) {
    return absl::InvalidArgumentError(
        "got objects, want texts or lists: the model was not trained from CSV with column names");
  }
  std::vector<const TableColumn*> columns;
  for (const TableColumn& column : schema_->columns) {
    const bool used = column.kind != TableColumn::Kind::kLabel && column.kind != TableColumn::Kind::kIgnored;
    if (used) columns.push_back(&column);
  }
  const std::string delimiter = source_.csv().delimiter().empty() ? "," : source_.csv().delimiter();
  std::string text = absl::StrJoin(columns, delimiter, [](std::string* out, const TableColumn* column) {
    absl::StrAppend(out, Quoted(column->name));
  });
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_object()) return WrongKind(i, list[i], "an object");
    std::vector<std::string> fields;
    size_t known = 0;
    for (const TableColumn* column : columns) {
      const auto found = list[i].find(column->name);
      known += found != list[i].end();
      absl::StatusOr<std::string> field = CsvField(found == list[i].end() ? Json() : *found);
      if (!field.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("example ", i, ": ", ColumnText(column->name, 0), ": ", field.status().message()));
      }
      fields.push_back(*std::move(field));
    }
    if (known == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("example ", i, ": got no known column, want columns of the training data, such as ",
                       QuotedText(columns.front()->name)));
    }
    absl::StrAppend(&text, "\n", absl::StrJoin(fields, delimiter));
  }
  return ReadExactly(list.size(), text, /*header=*/true);
}

absl::StatusOr<Examples> ExampleReader::ReadLists(const Json& list) const {
  if (!schema_.has_value()) return ReadFeatures(list);
  const std::string delimiter = source_.csv().delimiter().empty() ? "," : source_.csv().delimiter();
  std::string text;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_array()) return WrongKind(i, list[i], "a list");
    std::vector<std::string> fields;
    for (const Json& value : list[i]) {
      absl::StatusOr<std::string> field = CsvField(value);
      if (!field.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("example ", i, ": ", field.status().message()));
      }
      fields.push_back(*std::move(field));
    }
    absl::StrAppend(&text, absl::StrJoin(fields, delimiter), "\n");
  }
  return ReadExactly(list.size(), text, /*header=*/false);
}

absl::StatusOr<Examples> ExampleReader::ReadFeatures(const Json& list) const {
  if (!source_.has_idx() && !source_.has_libsvm()) {
    return absl::InvalidArgumentError("got lists, want texts: lines of the training data's format");
  }
  const Normalizer normalizer(normalization_);
  Examples examples{.count = list.size()};
  examples.features.reserve(list.size() * features_);
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_array()) return WrongKind(i, list[i], "a list");
    if (list[i].size() != features_) {
      return absl::InvalidArgumentError(
          absl::StrCat("example ", i, ": got ", list[i].size(), " features, want ", features_));
    }
    for (const Json& value : list[i]) {
      const double number = value.is_number() ? value.get<double>() : std::nan("");
      if (!std::isfinite(static_cast<float>(number))) {
        return absl::InvalidArgumentError(absl::StrCat("example ", i, ": got ", JsonLine(value).substr(0, kMaxQuoted),
                                                       " as feature ", examples.features.size() % features_,
                                                       ", want a finite number"));
      }
      examples.features.push_back(normalizer(number));
    }
  }
  return examples;
}

}  // namespace ballast
