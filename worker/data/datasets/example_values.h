// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "ballast/v1/job.pb.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/datasets/row_ids.h"
#include "worker/data/files/text_rows.h"

namespace ballast {

// Resolves a relative path of a job file against `base_folder`; empty: the current directory.
inline std::string DataPath(const std::string& base_folder, const std::string& path) {
  if (base_folder.empty() || (!path.empty() && path[0] == '/')) return path;
  return absl::StrCat(base_folder, "/", path);
}

// Opens the rows of a data set of text.
inline absl::StatusOr<TextRows> OpenRows(const std::string& path, const DatasetOptions& options,
                                         const TextRows::RowCheck& check,
                                         TextRows::RowEnd row_end = TextRows::LineEnd) {
  if (!options.content.has_value()) return TextRows::Open(path, check, std::move(row_end));
  return TextRows::OfText(path, *options.content, check, std::move(row_end),
                          {.lines_before = options.lines_before, .may_be_empty = options.may_be_empty});
}

// Finds the labels for Dataset::ExtremeLabels while labels are added one by one. Knows nothing of files: the caller
// interprets the `place` of a label.
// Thread safety: none.
class LabelExtremes {
 public:
  void Add(float label, uint64_t place) {
    if (!lowest_.has_value() || label < lowest_->label) lowest_ = {label, place};
    if (!highest_.has_value() || label > highest_->label) highest_ = {label, place};
    if (!fraction_.has_value() && label != std::floor(label)) fraction_ = {label, place};
  }

  // `where` returns a place as text for error messages.
  std::vector<PlacedLabel> Describe(const std::function<std::string(uint64_t place)>& where) const {
    std::vector<PlacedLabel> labels;
    for (const auto& found : {fraction_, lowest_, highest_}) {
      if (found.has_value()) labels.push_back({found->label, where(found->place)});
    }
    return labels;
  }

 private:
  struct Found {
    float label = 0;
    uint64_t place = 0;
  };
  std::optional<Found> lowest_;
  std::optional<Found> highest_;
  std::optional<Found> fraction_;
};

// Computes (x - mean) / stddev in double and rounds once, so that all readers give the same bits for the same number.
// Thread safety: immutable.
class Normalizer {
 public:
  explicit Normalizer(const v1::Normalization& normalization)
      : mean_(normalization.mean()), stddev_(normalization.has_stddev() ? normalization.stddev() : 1) {
    for (int i = 0; i < 256; ++i) table_[i] = (*this)(i);
  }

  float operator()(double x) const { return static_cast<float>((x - mean_) / stddev_); }

  // Same as operator(), from a lookup table.
  float OfByte(uint8_t x) const { return table_[x]; }

  void Apply(absl::Span<float> values) const {
    for (float& value : values) value = (*this)(value);
  }

 private:
  double mean_;
  double stddev_;
  std::array<float, 256> table_;
};

// Collects the ids of one example, whose fields may come in any order. Thread safety: none.
class BagsOfExample {
 public:
  void Add(uint64_t field, uint64_t id) {
    sorted_ = sorted_ && (ids_.empty() || ids_.back().first <= field);
    ids_.emplace_back(field, id);
  }

  // Appends a bag for each of `fields` fields to `ids`, unless that is null, and forgets them. Ids of a field keep
  // their order.
  void MoveTo(uint64_t fields, IdBags* ids) {
    if (!sorted_) std::stable_sort(ids_.begin(), ids_.end(), [](auto& a, auto& b) { return a.first < b.first; });
    auto next = ids_.begin();
    for (uint64_t field = 0; ids != nullptr && field < fields; ++field) {
      for (; next != ids_.end() && next->first == field; ++next) ids->ids.push_back(next->second);
      ids->ends.push_back(static_cast<uint32_t>(ids->ids.size()));
    }
    ids_.clear();
    sorted_ = true;
  }

 private:
  std::vector<std::pair<uint64_t, uint64_t>> ids_;
  bool sorted_ = true;
};

// Numbers and categories of a row of click data in Criteo's format.
constexpr size_t kClickNumbers = 13;
constexpr size_t kClickCategories = 26;

// Names of the fields of ids of click data: "C1" to "C26".
inline absl::Span<const std::string> ClickFields() {
  static const auto* const names = [] {
    auto* list = new std::vector<std::string>;
    for (size_t i = 1; i <= kClickCategories; ++i) list->push_back(absl::StrCat("C", i));
    return list;
  }();
  return *names;
}

// Writes the features of a row of click data, sign(x) * ln(1 + |x|) and normalized, and appends its bags to `ids`
// unless that is null. The values are std::optional.
template <typename Numbers, typename Categories>
void WriteClickExample(const Numbers& numbers, const Categories& categories, const Normalizer& normalizer,
                       absl::Span<float> features, IdBags* ids) {
  static_assert(std::tuple_size_v<Numbers> == kClickNumbers && std::tuple_size_v<Categories> == kClickCategories);
  for (size_t i = 0; i < kClickNumbers; ++i) {
    const double x = static_cast<double>(numbers[i].value_or(0));
    features[i] = normalizer(std::copysign(std::log1p(std::abs(x)), x));
  }
  if (ids == nullptr) return;
  for (size_t field = 0; field < kClickCategories; ++field) {
    if (categories[field].has_value()) ids->ids.push_back(CategoryRowId(uint64_t{*categories[field]}, field));
    ids->ends.push_back(static_cast<uint32_t>(ids->ids.size()));
  }
}

}  // namespace ballast
