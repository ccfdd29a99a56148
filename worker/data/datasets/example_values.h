// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "ballast/v1/job.pb.h"
#include "worker/data/datasets/dataset.h"

namespace ballast {

// Resolves a relative path of a job file against `base_folder`; empty: the current directory.
inline std::string DataPath(const std::string& base_folder, const std::string& path) {
  if (base_folder.empty() || (!path.empty() && path[0] == '/')) return path;
  return absl::StrCat(base_folder, "/", path);
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

}  // namespace ballast
