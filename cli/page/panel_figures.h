// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "cli/page/metric_samples.h"
#include "cli/page/panel_list.h"

namespace ballast {

// A number that a panel shows.
struct Figure {
  std::string legend;
  double value = 0;
};

// The figures of one series of a panel now. Of kBuckets, the legends are the upper bounds of the buckets and the values
// their counts.
struct SeriesFigures {
  // Indexes in Panels() and in its series.
  int panel = 0;
  int series = 0;
  std::vector<Figure> figures;
};

// A series of lines with more than that many groups has three lines instead: largest, median, smallest. Of bars only
// the largest are shown.
inline constexpr int kMaxLines = 32;

// Returns the names of all samples that the panels need.
absl::flat_hash_set<std::string> WantedSamples(const std::vector<Panel>& panels);

// Evaluates all series at a time; those without data are left out. The same expressions stand in the Grafana dashboard
// as PromQL.
std::vector<SeriesFigures> Evaluate(const std::vector<Panel>& panels, const SampleStore& store, double now);

}  // namespace ballast
