// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/report/line_chart.h"
#include "common/run/metrics.h"
#include "common/run/summary.h"

namespace ballast {

// Returns the charts of a run: always the loss; accuracy, AUC, throughput, staleness, waiting and learning rate only if
// they have something to show. The figures in their legends are those of the summary: of the newest epoch, or the whole
// run.
std::vector<LineChart> ReportCharts(const Metrics& metrics, const std::optional<Summary>& summary = std::nullopt);

// Returns the mean over 1/80 of the points on either side, fewer near the start; gaps stay gaps.
std::vector<ChartPoint> Smoothed(const std::vector<ChartPoint>& points);

// One epoch of a run, from its lines of metrics.jsonl.
struct EpochRow {
  int64_t epoch = 0;
  // The last step of the epoch.
  int64_t step = 0;
  // Time since the end of the previous row.
  double seconds = 0;
  // Results of the epoch's line; for an unfinished epoch, means over the examples of its training lines; absent if
  // there are none.
  std::optional<double> train_loss;
  std::optional<double> samples_per_second;
  std::optional<double> test_loss;
  std::optional<double> test_accuracy;
  std::optional<double> test_auc;
  // True for the first row with the best test AUC or, if no row has one, test accuracy.
  bool best = false;
};

// Returns the rows in the order of epochs.
std::vector<EpochRow> EpochRows(const Metrics& metrics);

// Returns the part of a summary that the metrics tell; the losses are those of the last epoch that has any.
Summary SummarizeMetrics(const Metrics& metrics);

// Returns a <section> with the table, in which the best test AUC or accuracy is marked; empty if there are no rows.
std::string RenderEpochTable(const std::vector<EpochRow>& rows);

// Returns a <section> about the traffic between workers and servers: bytes, waits, dropped gradients, and bar charts of
// staleness and waits. Empty if the servers reported nothing.
std::string RenderExchangeCard(const Summary& summary);

}  // namespace ballast
