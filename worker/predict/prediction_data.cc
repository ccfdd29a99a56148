// SPDX-License-Identifier: Apache-2.0
#include "worker/predict/prediction_data.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/job/data_validation.h"
#include "common/job/job_file.h"
#include "common/job/job_file_checker.h"
#include "worker/data/datasets/table_schema.h"

namespace ballast {
namespace {

// Returns the name of a format, like "csv"; empty if none is set.
std::string FormatName(const v1::DataSource& source) {
  const auto* const field = v1::DataSource::descriptor()->FindFieldByNumber(source.format_case());
  return field == nullptr ? "" : field->name();
}

// Keeps protobuf from printing errors; the caller reports them.
class NoErrors : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string&) override {}
};

absl::StatusOr<v1::DataSource> ParseFormat(const std::string& format) {
  const bool only_kind = format.find_first_of("{<") == std::string::npos;
  const std::string text = only_kind ? format + " {}" : format;
  std::vector<std::string> errors;
  for (const TextError& error : CheckMessageText(text, *v1::DataSource::descriptor(), "a data source")) {
    errors.push_back(error.message);
  }
  v1::DataSource source;
  NoErrors no_errors;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&no_errors);
  if (errors.empty() && !parser.ParseFromString(text, &source)) {
    errors.push_back(absl::StrCat("got \"", format, "\", want a data source as in a job file"));
  }
  if (!errors.empty()) return absl::InvalidArgumentError(absl::StrCat("flag --format: ", absl::StrJoin(errors, "; ")));
  return source;
}

// Checks a format that --format gives as that of a test file in a job.
absl::Status CheckFormat(const v1::DataSource& format, const v1::DataSource& trained) {
  v1::Data data;
  *data.mutable_train() = trained;
  *data.mutable_test() = format;
  ValidationErrors errors;
  CheckData(data, errors);
  const absl::Status status = errors.First();
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("flag --format: ", absl::StripPrefix(status.message(), "data.test.")));
}

absl::StatusOr<v1::DataSource> SourceOf(const PredictionData& data, const ModelDescription& description) {
  absl::StatusOr<v1::DataSource> source =
      data.format.empty() ? absl::StatusOr<v1::DataSource>(TextFormat(description.source)) : ParseFormat(data.format);
  if (!source.ok()) return source;
  if (absl::Status status = CheckFormat(*source, description.source); !status.ok()) return status;
  if (FormatName(*source).empty()) {
    return absl::InvalidArgumentError("flag --format: got nothing, want the format: the model's file does not name it");
  }
  VisitPaths("data", *source, [&](const std::string&, std::string& path) { path = data.path; });
  if (source->has_idx()) source->mutable_idx()->set_labels(data.labels);
  if (source->has_idx() && data.labels.empty() && data.needs_labels) {
    return absl::InvalidArgumentError("flag --labels: got nothing, want the file with the labels of the images");
  }
  if (!source->has_idx() && !data.labels.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("flag --labels: got it with format ", FormatName(*source), ", want it only with idx"));
  }
  if (source->has_libsvm() && source->libsvm().features() == 0) {
    source->mutable_libsvm()->set_features(description.features);
  }
  return source;
}

}  // namespace

v1::DataSource TextFormat(v1::DataSource source) {
  if (source.has_planted_clicks()) source.mutable_criteo();
  return source;
}

absl::StatusOr<std::optional<TableSchema>> TrainedSchema(const ModelDescription& description) {
  if (description.table.empty()) return std::nullopt;
  absl::StatusOr<TableSchema> schema = TableSchema::FromJson(description.table);
  if (schema.ok()) return *std::move(schema);
  return absl::InvalidArgumentError(absl::StrCat("metadata \"table\": ", schema.status().message()));
}

absl::StatusOr<TableSchema> PlainSchema(const ModelDescription& description, int64_t label_column) {
  const int64_t columns = description.features + 1;
  if (label_column < -columns || label_column >= columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("csv.label_column: got ", label_column, ", want ", -columns, " to ", columns - 1));
  }
  const v1::Normalization& normalization = description.normalization;
  TableColumn number;
  number.mean = normalization.mean();
  if (normalization.has_stddev()) number.stddev = normalization.stddev();
  TableSchema schema;
  schema.columns.assign(columns, number);
  schema.columns[label_column < 0 ? columns + label_column : label_column].kind = TableColumn::Kind::kLabel;
  return schema;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenPredictionData(const PredictionData& data,
                                                            const ModelDescription& description) {
  const absl::StatusOr<v1::DataSource> source = SourceOf(data, description);
  if (!source.ok()) return source.status();
  absl::StatusOr<std::optional<TableSchema>> schema = TrainedSchema(description);
  if (!schema.ok()) return schema.status();
  if (schema->has_value() && !source->has_csv()) {
    return absl::InvalidArgumentError(
        absl::StrCat("flag --format: got ", FormatName(*source), ", want csv, from which the model was trained"));
  }
  if (source->has_csv() && !schema->has_value()) {
    absl::StatusOr<TableSchema> plain = PlainSchema(description, source->csv().label_column());
    if (!plain.ok()) return absl::InvalidArgumentError(absl::StrCat("flag --format: ", plain.status().message()));
    *schema = *std::move(plain);
  }
  DatasetOptions options{.normalization = description.normalization, .labels_optional = !data.needs_labels};
  if (source->has_csv()) options.schema = &**schema;
  absl::StatusOr<std::unique_ptr<Dataset>> dataset = OpenDataset(*source, options);
  if (!dataset.ok()) return dataset;
  if (const absl::Span<const std::string> fields = (*dataset)->id_fields(); fields != description.id_fields) {
    return absl::InvalidArgumentError(absl::StrCat(data.path, ": has the fields of ids ", absl::StrJoin(fields, ", "),
                                                   ", want ", absl::StrJoin(description.id_fields, ", "),
                                                   " as in the model's training data"));
  }
  if (static_cast<int64_t>((*dataset)->features()) == description.features) return dataset;
  return absl::InvalidArgumentError(absl::StrCat(data.path, ": has ", (*dataset)->features(), " features, want ",
                                                 description.features, " as in the model's training data"));
}

absl::StatusOr<std::vector<std::string>> ClassNames(const ModelDescription& description, int64_t outputs) {
  const absl::StatusOr<std::optional<TableSchema>> schema = TrainedSchema(description);
  if (!schema.ok()) return schema.status();
  std::vector<std::string> names;
  if (schema->has_value()) names = (*schema)->classes;
  // A model may have more outputs than its training data had classes.
  while (static_cast<int64_t>(names.size()) < outputs) names.push_back(absl::StrCat(names.size()));
  names.resize(outputs);
  return names;
}

}  // namespace ballast
