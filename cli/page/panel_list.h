// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace ballast {

// The lines, bars or numbers of a panel that one expression yields: a row of `series` in panels.json.
struct PanelSeries {
  enum class Take { kValue, kMax, kRate, kIncrease, kQuantile, kMean, kBuckets, kAge };
  enum class Combine { kSum, kMax, kMin };

  std::string metric;
  Take take = Take::kValue;
  // The quantile of kQuantile, from 0 to 1.
  double quantile = 0;
  // Span of rates and increases; 0: as short as scrapes allow.
  double over_seconds = 0;
  // Labels that a sample must have.
  std::vector<std::pair<std::string, std::string>> where;
  // "shard" or "worker": only processes of that kind, and their rank as a label of that name. Empty: all processes.
  std::string of;
  // The labels that stay.
  std::vector<std::string> by;
  Combine combine = Combine::kSum;
  // The largest value over the mean takes the place of the values.
  bool max_over_mean = false;
  // Text with {label} in it.
  std::string legend;
  // Name of the panel's chart that shows it; empty: its only one.
  std::string chart;
  // If empty, the panel's unit.
  std::string unit;
  std::string kind;
  // Null: none.
  std::shared_ptr<const PanelSeries> minus;
  std::shared_ptr<const PanelSeries> divide_by;
};

// One of the twenty panels of PLATFORM.md, which the live page, `ballast top` and the Grafana dashboard show.
struct Panel {
  std::string id;
  std::string title;
  std::string unit;
  // "line", "stacked", "bar", "histogram" or "stat".
  std::string kind;
  std::string help;
  // Why it may have no data.
  std::string empty;
  std::vector<PanelSeries> series;
};

// The contents of panels.json. Thread safety: immutable.
const std::vector<Panel>& Panels();

// The text of panels.json.
absl::string_view PanelsText();

}  // namespace ballast
