// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/datasets/example_values.h"
#include "worker/data/files/text_rows.h"

namespace ballast {
namespace {

constexpr size_t kColumns = 1 + kClickNumbers + kClickCategories;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A row, parsed.
struct CriteoRow {
  // NaN: missing.
  float label = kNaN;
  // Empty: missing.
  std::array<std::optional<int64_t>, kClickNumbers> numbers;
  std::array<std::optional<uint64_t>, kClickCategories> categories;
};

// The following functions read the field at `at` and return its end, or null if the field cannot begin with what they
// found. The caller checks that the field does end there.

const char* TakeLabel(const char* at, const char* end, float& label) {
  if (at == end || (*at != '0' && *at != '1')) return nullptr;
  label = static_cast<float>(*at - '0');
  return at + 1;
}

const char* TakeNumber(const char* at, const char* end, std::optional<int64_t>& number) {
  if (at == end || *at == '\t') return at;
  const std::from_chars_result parsed = std::from_chars(at, end, number.emplace());
  return parsed.ec == std::errc() ? parsed.ptr : nullptr;
}

// Returns the value of a hexadecimal digit, or 16 for another character.
constexpr uint8_t DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 16;
}

constexpr std::array<uint8_t, 256> kDigits = [] {
  std::array<uint8_t, 256> digits = {};
  for (int i = 0; i < 256; ++i) digits[i] = DigitOf(static_cast<char>(i));
  return digits;
}();

const char* TakeCategory(const char* at, const char* end, std::optional<uint64_t>& category) {
  const char* const begin = at;
  uint64_t value = 0;
  for (; at != end; ++at) {
    const uint8_t digit = kDigits[static_cast<uint8_t>(*at)];
    if (digit == 16) break;
    value = value << 4 | digit;
  }
  if (at - begin > 16) return nullptr;
  if (at != begin) category = value;
  return at;
}

// Returns the end of column `i`, as above; writes its value into the row.
const char* TakeColumn(size_t i, const char* at, const char* end, CriteoRow& row) {
  if (i == 0) return TakeLabel(at, end, row.label);
  if (i <= kClickNumbers) return TakeNumber(at, end, row.numbers[i - 1]);
  return TakeCategory(at, end, row.categories[i - 1 - kClickNumbers]);
}

// Returns the error for a line that ParseLine refuses, whose first text is column `first` and whose columns before
// `begin` are missing.
absl::Status DescribeFault(absl::string_view line, size_t first, size_t begin) {
  const std::vector<absl::string_view> texts = absl::StrSplit(line, '\t');
  if (texts.size() + first != kColumns) {
    return absl::InvalidArgumentError(absl::StrCat("got ", texts.size(), texts.size() == 1 ? " column" : " columns",
                                                   ", want ", kColumns, ": label, ", kClickNumbers, " numbers, ",
                                                   kClickCategories, " categories"));
  }
  CriteoRow row;
  size_t i = begin;
  for (; i + 1 < kColumns; ++i) {
    const absl::string_view text = texts[i - first];
    const char* const end = text.data() + text.size();
    if (TakeColumn(i, text.data(), end, row) != end) break;
  }
  const absl::string_view want = i == 0               ? "0 or 1, the label"
                                 : i <= kClickNumbers ? "a whole number of 64 bits"
                                                      : "at most 16 hexadecimal digits";
  return absl::InvalidArgumentError(absl::StrCat("column ", i - first + 1, " (counted from 1): got \"",
                                                 absl::CEscape(texts[i - first].substr(0, 40)), "\", want ", want));
}

// If `labels_optional`, lines without label have one column less, or their label is empty.
absl::StatusOr<CriteoRow> ParseLine(absl::string_view line, bool labels_optional) {
  CriteoRow row;
  const char* at = line.data();
  const char* const end = at + line.size();
  const bool lacks_label = labels_optional && static_cast<size_t>(std::count(at, end, '\t')) + 2 == kColumns;
  const bool empty_label = labels_optional && !lacks_label && at != end && *at == '\t';
  const size_t begin = lacks_label || empty_label ? 1 : 0;
  if (empty_label) ++at;
  for (size_t i = begin;; ++at) {
    at = TakeColumn(i, at, end, row);
    ++i;
    if (at == end && i == kColumns) return row;
    if (at == nullptr || at == end || i == kColumns || *at != '\t') {
      return DescribeFault(line, lacks_label ? 1 : 0, begin);
    }
  }
}

class CriteoDataset : public Dataset {
 public:
  CriteoDataset(TextRows rows, bool labels_optional, const Normalizer& normalizer, bool has_labels,
                std::vector<PlacedLabel> extremes)
      : rows_(std::move(rows)),
        labels_optional_(labels_optional),
        normalizer_(normalizer),
        has_labels_(has_labels),
        extremes_(std::move(extremes)) {}

  uint64_t size() const override { return rows_.size(); }
  uint64_t features() const override { return kClickNumbers; }
  absl::Span<const std::string> id_fields() const override { return ClickFields(); }
  bool has_labels() const override { return has_labels_; }
  std::vector<PlacedLabel> ExtremeLabels() const override { return extremes_; }

  absl::Status Read(absl::Span<const uint64_t> indices, absl::Span<float> features, absl::Span<float> labels,
                    IdBags* ids) const override {
    if (absl::Status status = CheckRead(*this, indices, features, labels); !status.ok()) return status;
    ClearBags(ids);
    for (size_t i = 0; i < indices.size(); ++i) {
      const absl::StatusOr<CriteoRow> row = ParseLine(rows_.Row(indices[i]), labels_optional_);
      if (!row.ok()) {
        return absl::DataLossError(absl::StrCat(
            "example ", indices[i], " has changed in the file since it was opened: ", row.status().message()));
      }
      labels[i] = row->label;
      WriteClickExample(row->numbers, row->categories, normalizer_, features.subspan(i * kClickNumbers, kClickNumbers),
                        ids);
    }
    return absl::OkStatus();
  }

 private:
  const TextRows rows_;
  const bool labels_optional_;
  const Normalizer normalizer_;
  const bool has_labels_;
  const std::vector<PlacedLabel> extremes_;
};

}  // namespace

// Opens a file in the format of Criteo's data. Checks every line once and skips empty lines.
absl::StatusOr<std::unique_ptr<Dataset>> OpenCriteo(const v1::DataSource& source, const DatasetOptions& options) {
  const std::string path = DataPath(options.base_folder, source.criteo().path());
  LabelExtremes extremes;
  bool has_labels = true;
  const auto check = [&](absl::string_view line, uint64_t number) -> absl::StatusOr<bool> {
    if (line.empty()) return false;
    const absl::StatusOr<CriteoRow> row = ParseLine(line, options.labels_optional);
    if (!row.ok()) return row.status();
    if (std::isnan(row->label)) {
      has_labels = false;
    } else {
      extremes.Add(row->label, number);
    }
    return true;
  };
  absl::StatusOr<TextRows> rows = OpenRows(path, options, check);
  if (!rows.ok()) return rows.status();
  const auto where = [&](uint64_t line) { return absl::StrCat(path, ":", line); };
  return std::make_unique<CriteoDataset>(*std::move(rows), options.labels_optional, Normalizer(options.normalization),
                                         has_labels, extremes.Describe(where));
}

}  // namespace ballast
