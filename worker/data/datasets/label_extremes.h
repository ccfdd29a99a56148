// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "worker/data/datasets/dataset.h"

namespace ballast {

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

}  // namespace ballast
