// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/table_schema.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;
using Kind = TableColumn::Kind;

constexpr std::pair<Kind, const char*> kKinds[] = {
    {Kind::kNumber, "number"},   {Kind::kCategory, "category"}, {Kind::kLabel, "label"},
    {Kind::kIgnored, "ignored"}, {Kind::kHashed, "hashed"},     {Kind::kLookedUp, "looked_up"},
};

// Leaves out what has its default, because a table may have a million plain columns.
Json ColumnJson(const TableColumn& column) {
  const auto* const kind =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& each) { return each.first == column.kind; });
  Json json = {{"kind", kind->second}};
  if (!column.name.empty()) json["name"] = column.name;
  if (column.kind == Kind::kNumber) {
    if (column.mean != 0) json["mean"] = column.mean;
    if (column.stddev != 1) json["stddev"] = column.stddev;
    if (column.fill != 0) json["fill"] = column.fill;
  }
  if (column.kind == Kind::kCategory) json["categories"] = column.categories;
  if (column.has_ids()) json["field"] = column.field;
  if (column.kind == Kind::kLookedUp) json["texts"] = column.texts;
  if (column.indicator) json["indicator"] = true;
  return json;
}

absl::Status ReadNumber(const Json& json, const char* key, double& to) {
  if (!json.contains(key)) return absl::OkStatus();
  absl::StatusOr<double> number = NumberField(json, key);
  if (!number.ok()) return number.status();
  if (!std::isfinite(*number)) return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is not finite"));
  to = *number;
  return absl::OkStatus();
}

absl::Status ReadCount(const Json& json, const char* key, uint64_t& to) {
  const absl::StatusOr<int64_t> count = CountField(json, key);
  if (!count.ok()) return count.status();
  to = *count;
  return absl::OkStatus();
}

// Reads texts that are unique and in byte order.
absl::Status ReadTexts(const Json& json, const char* key, std::vector<std::string>& to) {
  const auto list = json.find(key);
  const bool texts = list != json.end() && list->is_array() &&
                     std::all_of(list->begin(), list->end(), [](const Json& each) { return each.is_string(); });
  if (texts) to = list->get<std::vector<std::string>>();
  if (texts && std::adjacent_find(to.begin(), to.end(), std::greater_equal<>()) == to.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is no list of different texts in byte order"));
}

absl::StatusOr<TableColumn> ColumnFromJson(const Json& json) {
  TableColumn column;
  absl::StatusOr<std::string> kind = StringField(json, "kind");
  absl::StatusOr<std::string> name = json.contains("name") ? StringField(json, "name") : "";
  absl::StatusOr<bool> indicator = json.contains("indicator") ? BoolField(json, "indicator") : false;
  if (!kind.ok()) return kind.status();
  if (!name.ok()) return name.status();
  if (!indicator.ok()) return indicator.status();
  const auto* const known =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& each) { return *kind == each.second; });
  if (known == std::end(kKinds)) {
    return absl::InvalidArgumentError(absl::StrCat("\"kind\" is ", QuotedText(*kind),
                                                   ", want number, category, label, ignored, hashed or looked_up"));
  }
  column.name = *std::move(name);
  column.kind = known->first;
  column.indicator = *indicator;
  absl::Status status;
  if (column.kind == Kind::kNumber) {
    status.Update(ReadNumber(json, "mean", column.mean));
    status.Update(ReadNumber(json, "stddev", column.stddev));
    status.Update(ReadNumber(json, "fill", column.fill));
    if (column.stddev < 0) status.Update(absl::InvalidArgumentError("\"stddev\" is negative"));
  }
  if (column.kind == Kind::kCategory) status.Update(ReadTexts(json, "categories", column.categories));
  if (column.kind == Kind::kLookedUp) status.Update(ReadTexts(json, "texts", column.texts));
  if (column.has_ids()) status.Update(ReadCount(json, "field", column.field));
  if (!status.ok()) return status;
  return column;
}

// Checks that each field of ids has one column.
absl::Status CheckIdFields(const TableSchema& schema) {
  const auto ids = static_cast<size_t>(std::count_if(schema.columns.begin(), schema.columns.end(),
                                                     [](const TableColumn& column) { return column.has_ids(); }));
  std::vector<bool> seen(ids);
  for (const TableColumn& column : schema.columns) {
    if (!column.has_ids()) continue;
    if (column.field >= ids || seen[column.field]) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"field\" is ", column.field, ", want each of 0 to ", ids - 1, " once"));
    }
    seen[column.field] = true;
  }
  return absl::OkStatus();
}

absl::Status CheckColumns(const TableSchema& schema) {
  const auto labels = std::count_if(schema.columns.begin(), schema.columns.end(),
                                    [](const TableColumn& column) { return column.kind == Kind::kLabel; });
  if (labels != 1) return absl::InvalidArgumentError(absl::StrCat("has ", labels, " label columns, want 1"));
  if (absl::Status status = CheckIdFields(schema); !status.ok()) return status;
  const bool has_ids = std::any_of(schema.columns.begin(), schema.columns.end(),
                                   [](const TableColumn& column) { return column.has_ids(); });
  if (schema.features() == 0 && !has_ids) return absl::InvalidArgumentError("has no features, want at least 1");
  return absl::OkStatus();
}

}  // namespace

uint64_t TableSchema::features() const {
  uint64_t features = 0;
  for (const TableColumn& column : columns) {
    if (column.kind == Kind::kNumber) ++features;
    if (column.kind == Kind::kCategory) features += column.categories.size();
    if (column.indicator) ++features;
  }
  return features;
}

std::vector<std::string> TableSchema::IdFields() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (!columns[i].has_ids()) continue;
    names.resize(std::max(names.size(), static_cast<size_t>(columns[i].field) + 1));
    names[columns[i].field] = columns[i].name.empty() ? absl::StrCat(i) : columns[i].name;
  }
  return names;
}

size_t TableSchema::label() const {
  return std::find_if(columns.begin(), columns.end(),
                      [](const TableColumn& column) { return column.kind == Kind::kLabel; }) -
         columns.begin();
}

std::string TableSchema::ToJson() const {
  Json list = Json::array();
  for (const TableColumn& column : columns) list.push_back(ColumnJson(column));
  Json json = {{"has_names", has_names}, {"missing", v1::MissingValues_Name(missing)}, {"classes", classes}};
  if (!id_separator.empty()) json["id_separator"] = id_separator;
  json["columns"] = std::move(list);
  return JsonLine(json);
}

absl::StatusOr<TableSchema> TableSchema::FromJson(absl::string_view json) {
  absl::StatusOr<Json> object = ParseJsonObject(json);
  if (!object.ok()) return object.status();
  TableSchema schema;
  absl::StatusOr<bool> has_names = BoolField(*object, "has_names");
  if (!has_names.ok()) return has_names.status();
  schema.has_names = *has_names;
  absl::StatusOr<std::string> missing = StringField(*object, "missing");
  if (!missing.ok()) return missing.status();
  if (!v1::MissingValues_Parse(*missing, &schema.missing)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"missing\" is ", QuotedText(*missing), ", want REFUSE, MEAN or INDICATOR"));
  }
  if (absl::Status status = ReadTexts(*object, "classes", schema.classes); !status.ok()) return status;
  schema.text_labels = !schema.classes.empty();
  if (object->contains("id_separator")) {
    absl::StatusOr<std::string> separator = StringField(*object, "id_separator");
    if (!separator.ok()) return separator.status();
    if (separator->size() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"id_separator\" is ", QuotedText(*separator), ", want one character"));
    }
    schema.id_separator = *std::move(separator);
  }
  const auto columns = object->find("columns");
  if (columns == object->end() || !columns->is_array()) return absl::InvalidArgumentError("\"columns\" is no list");
  for (const Json& each : *columns) {
    absl::StatusOr<TableColumn> column = ColumnFromJson(each);
    if (!column.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("column ", schema.columns.size(), " (counted from 0): ", column.status().message()));
    }
    schema.columns.push_back(*std::move(column));
  }
  if (absl::Status status = CheckColumns(schema); !status.ok()) return status;
  return schema;
}

std::string ClassesText(const TableSchema& schema) {
  constexpr size_t kMaxNames = 10;
  const size_t count = schema.classes.size(), shown = std::min(count, kMaxNames);
  std::string text = absl::StrCat(count, count == 1 ? " class: " : " classes: ");
  for (size_t i = 0; i < shown; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", absl::Utf8SafeCEscape(schema.classes[i]));
  }
  if (shown < count) absl::StrAppend(&text, " and ", count - shown, " more");
  return text;
}

std::string QuotedText(absl::string_view text) {
  constexpr size_t kMaxShown = 60;
  const std::string shown(text.substr(0, kMaxShown));
  return absl::StrCat("\"", IsUtf8(shown) ? absl::Utf8SafeCEscape(shown) : absl::CEscape(shown),
                      shown.size() < text.size() ? "…" : "", "\"");
}

std::string ColumnText(absl::string_view name, size_t column) {
  if (name.empty()) return absl::StrCat("column ", column, " (counted from 0)");
  return absl::StrCat("column ", QuotedText(name));
}

}  // namespace ballast
