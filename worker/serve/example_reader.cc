// SPDX-License-Identifier: Apache-2.0
#include "worker/serve/example_reader.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
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

void ExampleReader::Lines::Add(absl::string_view line) {
  absl::StrAppend(&text, line, "\n");
  count += 1 + std::count(line.begin(), line.end(), '\n');
}

absl::Status ExampleReader::Lines::AddExample(const std::string& line) {
  if (line.empty() || line.find('\n') != line.npos) {
    return absl::InvalidArgumentError(absl::StrCat("example ", begins.size(), ": got ",
                                                   line.empty() ? "an empty text" : "a line break", ", want one line"));
  }
  begins.push_back(count + 1);
  Add(line);
  return absl::OkStatus();
}

absl::StatusOr<Examples> ExampleReader::ReadExactly(const Lines& lines, bool header) const {
  absl::StatusOr<Examples> examples = Read(lines.text, header);
  const uint64_t count = lines.begins.size();
  if (examples.ok() && examples->count != count) {
    return absl::InvalidArgumentError(absl::StrCat("got ", count, " examples that are ", examples->count,
                                                   " lines of data, want one line for each, none of them blank"));
  }
  if (examples.ok()) return examples;
  // "examples:3: has 38 fields" of the reader.
  absl::string_view message = examples.status().message();
  uint64_t line = 0;
  if (!absl::ConsumePrefix(&message, absl::StrCat(kName, ":")) ||
      !absl::SimpleAtoi(message.substr(0, message.find(':')), &line) || line < lines.begins.front()) {
    return examples;
  }
  const auto after = std::upper_bound(lines.begins.begin(), lines.begins.end(), line);
  return absl::Status(examples.status().code(),
                      absl::StrCat("example ", after - lines.begins.begin() - 1, message.substr(message.find(':'))));
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

absl::StatusOr<Examples> ExampleReader::ReadLines(const google::protobuf::RepeatedPtrField<std::string>& lines) const {
  if (absl::Status status = CheckCount(lines.size()); !status.ok()) return status;
  Lines all;
  for (const std::string& line : lines) {
    if (absl::Status status = all.AddExample(line); !status.ok()) return status;
  }
  if (all.begins.empty()) return absl::InvalidArgumentError("got no lines, want at least one");
  return ReadExactly(all, /*header=*/false);
}

absl::StatusOr<Examples> ExampleReader::ReadJson(const Json& list) const {
  if (!list.is_array() || list.empty()) {
    return absl::InvalidArgumentError("got no list of examples, want a list of at least one");
  }
  if (absl::Status status = CheckCount(list.size()); !status.ok()) return status;
  if (list.front().is_object()) return ReadObjects(list);
  if (list.front().is_array()) return ReadLists(list);
  Lines lines;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_string()) return WrongKind(i, list[i], i == 0 ? "a text, an object or a list" : "a text");
    if (absl::Status status = lines.AddExample(list[i].get<std::string>()); !status.ok()) return status;
  }
  return ReadExactly(lines, /*header=*/false);
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
  Lines lines;
  lines.Add(absl::StrJoin(columns, delimiter, [](std::string* out, const TableColumn* column) {
    absl::StrAppend(out, Quoted(column->name));
  }));
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
    lines.begins.push_back(lines.count + 1);
    lines.Add(absl::StrJoin(fields, delimiter));
  }
  return ReadExactly(lines, /*header=*/true);
}

absl::StatusOr<Examples> ExampleReader::ReadLists(const Json& list) const {
  if (!schema_.has_value()) return ReadFeatures(list);
  const std::string delimiter = source_.csv().delimiter().empty() ? "," : source_.csv().delimiter();
  Lines lines;
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
    lines.begins.push_back(lines.count + 1);
    lines.Add(absl::StrJoin(fields, delimiter));
  }
  return ReadExactly(lines, /*header=*/false);
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
