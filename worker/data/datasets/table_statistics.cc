// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/table_statistics.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/text/json_fields.h"

namespace ballast {

CsvFault::Kind CheckTableText(absl::string_view text) {
  if (text.size() > kMaxTableTextBytes) return CsvFault::kTooLong;
  return IsUtf8(std::string(text)) ? CsvFault::kNone : CsvFault::kEncoding;
}

TableStatistics::TableStatistics(const TableSchema& schema) : columns_(schema.columns.size()) {
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (schema.columns[i].kind == TableColumn::Kind::kLookedUp) columns_[i].max_texts = kMaxLookedUpTexts;
  }
}

void TableStatistics::Number(size_t column, double value) {
  Column& to = columns_[column];
  if (to.numbers++ == 0) to.first = value;
  const double difference = value - to.first;
  to.varies |= difference != 0;
  to.sum += difference;
  to.squares += difference * difference;
}

CsvFault::Kind TableStatistics::Text(size_t column, absl::string_view text) {
  std::set<std::string, std::less<>>& texts = columns_[column].texts;
  if (texts.find(text) != texts.end()) return CsvFault::kNone;
  if (texts.size() == columns_[column].max_texts) return CsvFault::kTooMany;
  const CsvFault::Kind fault = CheckTableText(text);
  if (fault == CsvFault::kNone) texts.emplace(text);
  return fault;
}

absl::Status TableStatistics::Store(bool per_column, TableSchema& schema) const {
  for (size_t i = 0; i < columns_.size(); ++i) {
    const Column& from = columns_[i];
    TableColumn& to = schema.columns[i];
    const bool looked_up = to.kind == TableColumn::Kind::kLookedUp;
    if (to.kind != TableColumn::Kind::kNumber && to.kind != TableColumn::Kind::kCategory && !looked_up) continue;
    if (from.numbers == 0 && from.texts.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(ColumnText(to.name, i), " has no value in any training example; to leave it out, set ignore: \"",
                       to.name.empty() ? absl::StrCat(i) : to.name, "\""));
    }
    if (looked_up) {
      to.texts.assign(from.texts.begin(), from.texts.end());
      continue;
    }
    to.indicator = schema.missing == v1::INDICATOR && from.missing > 0;
    to.categories.assign(from.texts.begin(), from.texts.end());
    if (to.kind != TableColumn::Kind::kNumber) continue;
    const double n = from.numbers;
    to.fill = from.first + from.sum / n;
    if (!per_column) continue;
    to.mean = to.fill;
    const double variance = (from.squares - from.sum * (from.sum / n)) / n;
    to.stddev = from.varies ? std::sqrt(std::max(variance, 0.0)) : 0;
  }
  return absl::OkStatus();
}

}  // namespace ballast
