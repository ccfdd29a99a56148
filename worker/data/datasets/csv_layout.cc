// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/csv_layout.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/text/json_fields.h"
#include "common/text/nearest_name.h"

namespace ballast {
namespace {

using Kind = TableColumn::Kind;

std::string ColumnsText(size_t count) { return absl::StrCat(count, count == 1 ? " column" : " columns"); }

// Returns the indices of the columns that a text in the job file names: those of that name, or the one of that number.
absl::StatusOr<std::vector<size_t>> FindColumns(const std::string& text, absl::string_view option,
                                                const std::vector<std::string>& names, int64_t fields) {
  std::vector<size_t> found;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) found.push_back(i);
  }
  if (!found.empty()) return found;
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number)) {
    if (number >= -fields && number < fields) return std::vector<size_t>{size_t(number < 0 ? fields + number : number)};
    return absl::InvalidArgumentError(absl::StrCat("has ", fields, " columns, csv.", option, " is ", QuotedText(text),
                                                   ", want ", -fields, " to ", fields - 1,
                                                   names.empty() ? "" : " or a name in the first row"));
  }
  if (names.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("has no column names, csv.", option, " is ", QuotedText(text),
                                                   ", want a number, or header: true"));
  }
  const NearestName nearest = FindNearestName(text, names);
  return absl::InvalidArgumentError(absl::StrCat("has no column ", QuotedText(text), ", which csv.", option, " names",
                                                 nearest.distance <= 2 && !nearest.name->empty()
                                                     ? absl::StrCat("; did you mean ", QuotedText(*nearest.name), "?")
                                                     : ""));
}

absl::Status SetLabel(const v1::Csv& csv, const std::vector<std::string>& names, TableSchema& schema) {
  const int64_t fields = schema.columns.size();
  const int64_t number = csv.label_column();
  if (csv.label().empty()) {
    if (number < -fields || number >= fields) {
      return absl::InvalidArgumentError(
          absl::StrCat("has ", fields, " columns, label_column is ", number, ", want ", -fields, " to ", fields - 1));
    }
    schema.columns[number < 0 ? fields + number : number].kind = Kind::kLabel;
    return absl::OkStatus();
  }
  const absl::StatusOr<std::vector<size_t>> found = FindColumns(csv.label(), "label", names, fields);
  if (!found.ok()) return found.status();
  // A number is no name.
  if (names.empty() || names[found->front()] != csv.label()) {
    return absl::InvalidArgumentError(absl::StrCat("has no column ", QuotedText(csv.label()),
                                                   ", which csv.label names; for a number, set label_column"));
  }
  schema.columns[found->front()].kind = Kind::kLabel;
  return absl::OkStatus();
}

// Returns the field of Csv that gives a column its kind.
absl::string_view OptionOf(Kind kind) {
  switch (kind) {
    case Kind::kCategory:
      return "categories";
    case Kind::kIgnored:
      return "ignore";
    case Kind::kHashed:
      return "hashed";
    case Kind::kLookedUp:
      return "looked_up";
    default:
      return "label";
  }
}

// Gives a kind to the columns that `texts` name. Columns of ids become fields in the order of the texts, after those
// that the schema has.
absl::Status SetKinds(const google::protobuf::RepeatedPtrField<std::string>& texts, Kind kind,
                      const std::vector<std::string>& names, TableSchema& schema) {
  const absl::string_view option = OptionOf(kind);
  uint64_t fields = schema.IdFields().size();
  for (const std::string& text : texts) {
    const absl::StatusOr<std::vector<size_t>> found = FindColumns(text, option, names, schema.columns.size());
    if (!found.ok()) return found.status();
    for (const size_t i : *found) {
      Kind& before = schema.columns[i].kind;
      if (before != Kind::kNumber && before != kind) {
        return absl::InvalidArgumentError(
            absl::StrCat(ColumnText(schema.columns[i].name, i), " is in csv.", option, ", but is ",
                         before == Kind::kLabel ? "the label" : absl::StrCat("also in ", OptionOf(before))));
      }
      if (before == Kind::kNumber && (kind == Kind::kHashed || kind == Kind::kLookedUp)) {
        schema.columns[i].field = fields++;
      }
      before = kind;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFieldNames(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("has two columns ", QuotedText(*twice), " of ids, want different names"));
}

}  // namespace

absl::StatusOr<TableSchema> NewTableSchema(const v1::Csv& csv, const std::vector<std::string>& names, size_t fields) {
  TableSchema schema;
  schema.has_names = !names.empty();
  schema.missing = csv.missing();
  schema.text_labels = csv.text_labels();
  schema.columns.resize(fields);
  for (size_t i = 0; i < names.size(); ++i) schema.columns[i].name = names[i];
  absl::Status status = SetLabel(csv, names, schema);
  if (status.ok()) status = SetKinds(csv.categories(), Kind::kCategory, names, schema);
  if (status.ok()) status = SetKinds(csv.ignore(), Kind::kIgnored, names, schema);
  if (status.ok()) status = SetKinds(csv.hashed(), Kind::kHashed, names, schema);
  if (status.ok()) status = SetKinds(csv.looked_up(), Kind::kLookedUp, names, schema);
  if (status.ok()) status = CheckFieldNames(schema.IdFields());
  if (!status.ok()) return status;
  schema.id_separator = csv.id_separator();
  bool has_feature = false;
  for (TableColumn& column : schema.columns) {
    if (column.kind == Kind::kIgnored) {
      // Its name plays no part, and need not be text that JSON can hold.
      column.name.clear();
      continue;
    }
    if (!IsUtf8(column.name)) {
      return absl::InvalidArgumentError(absl::StrCat("column name ", QuotedText(column.name), " is not UTF-8"));
    }
    has_feature |= column.kind != Kind::kLabel;
  }
  if (!has_feature) return absl::InvalidArgumentError("has no features: all columns but the label are ignored");
  return schema;
}

absl::StatusOr<CsvLayout> MatchTableSchema(const TableSchema& schema, std::vector<std::string> names, size_t fields,
                                           bool labels_optional) {
  CsvLayout layout;
  layout.format.fields.assign(fields, CsvFormat::Field::kSkipped);
  layout.columns.assign(fields, CsvLayout::kNone);
  layout.names = std::move(names);
  const bool by_name = schema.has_names && !layout.names.empty();
  const size_t label = schema.label(), columns = schema.columns.size();
  const bool unlabeled = !by_name && labels_optional && fields + 1 == columns;
  if (!by_name && fields != columns && !unlabeled) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", ColumnsText(fields), ", want ", columns, " as in the training data"));
  }
  for (size_t i = 0; i < columns; ++i) {
    const TableColumn& column = schema.columns[i];
    if (column.kind == Kind::kIgnored || (unlabeled && i == label)) continue;
    size_t field = unlabeled && i > label ? i - 1 : i;
    if (by_name) {
      const auto found = std::find(layout.names.begin(), layout.names.end(), column.name);
      if (found == layout.names.end() && i == label && labels_optional) continue;
      if (found == layout.names.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("has no column ", QuotedText(column.name), ", want the columns of ", "the training data"));
      }
      if (std::find(found + 1, layout.names.end(), column.name) != layout.names.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("has two columns ", QuotedText(column.name), ", want different names"));
      }
      field = found - layout.names.begin();
    }
    const bool text = column.kind == Kind::kCategory || column.has_ids() || (i == label && schema.text_labels);
    layout.format.fields[field] = text ? CsvFormat::Field::kText : CsvFormat::Field::kNumber;
    layout.columns[field] = i;
    if (i == label) layout.label = field;
  }
  return layout;
}

absl::Status DescribeCsvFault(const CsvFault& fault, const CsvLayout& layout, const TableSchema& schema, bool given,
                              absl::string_view row) {
  if (fault.kind == CsvFault::kColumns) {
    const absl::StatusOr<std::vector<std::string>> texts = CsvTexts(row, layout.format.delimiter);
    if (!texts.ok()) return texts.status();
    return absl::InvalidArgumentError(
        absl::StrCat("has ", ColumnsText(texts->size()), ", want ", layout.columns.size()));
  }
  const bool label = fault.field == layout.label;
  const size_t in_schema = layout.columns[fault.field];
  const bool looked_up = in_schema != CsvLayout::kNone && schema.columns[in_schema].kind == Kind::kLookedUp;
  const bool text = layout.format.fields[fault.field] == CsvFormat::Field::kText;
  const absl::string_view name = layout.name(fault.field);
  // The column in a list of the job file.
  const std::string listed = name.empty() ? absl::StrCat("\"", fault.field, "\"") : QuotedText(name);
  const std::string column = absl::StrCat(label ? "label " : "", ColumnText(name, fault.field));
  const std::string is = absl::StrCat(column, " is ", fault.text.empty() ? "empty" : QuotedText(fault.text), ", want ");
  const absl::string_view where = given ? " for the training data" : "";
  double number = 0;
  switch (fault.kind) {
    case CsvFault::kQuote:
      return BadQuotes(column, fault.text);
    case CsvFault::kMissing:
      return absl::InvalidArgumentError(
          absl::StrCat(is, text ? "a text" : "a number",
                       label ? "" : absl::StrCat("; for missing values, set missing: MEAN", where)));
    case CsvFault::kUnknown:
      return absl::InvalidArgumentError(
          absl::StrCat(is, "one of the ", ClassesText(schema), ", as in the training data"));
    case CsvFault::kEncoding:
      return absl::InvalidArgumentError(absl::StrCat(is, "UTF-8 text"));
    case CsvFault::kTooLong:
      return absl::InvalidArgumentError(
          absl::StrCat(column, " has a text of ", fault.text.size(), " bytes, want at most ", kMaxTableTextBytes));
    case CsvFault::kTooMany:
      return absl::InvalidArgumentError(
          absl::StrCat(column, " has more than ", looked_up ? kMaxLookedUpTexts : kMaxTableTexts, " different texts",
                       label       ? ", want a class"
                       : looked_up ? absl::StrCat("; for ids of all texts, set hashed: ", listed)
                                   : absl::StrCat("; to leave the column out, set ignore: ", listed)));
    default:
      break;
  }
  // A number that is not finite as float32, such as 1e39, is no text.
  if (absl::SimpleAtod(fault.text, &number)) return absl::InvalidArgumentError(absl::StrCat(is, "a finite number"));
  return absl::InvalidArgumentError(
      absl::StrCat(is, "a number",
                   label ? "; for labels that are text, set text_labels: true"
                         : absl::StrCat("; for a column of text, set categories: ", listed, " or ignore: ", listed),
                   where));
}

bool LooksLikeHeader(const std::vector<std::string>& first, const std::vector<std::string>& second) {
  const auto is_number = [](const std::string& text) {
    const TextNumber number = ParseNumber(text.data(), text.data() + text.size());
    return !std::isnan(number.value) && number.end == text.data() + text.size();
  };
  size_t names = 0;
  bool numbers_follow = false;
  for (size_t i = 0; i < first.size(); ++i) {
    if (IsMissingValue(first[i]) || is_number(first[i])) continue;
    ++names;
    numbers_follow |= i < second.size() && is_number(second[i]);
  }
  return numbers_follow && names * 10 >= first.size() * 9;
}

}  // namespace ballast
