// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cli/report/line_chart.h"
#include "common/run/metrics.h"

namespace ballast {

// Returns the charts of a run: always the loss; accuracy, throughput, staleness, waiting and learning rate only if they
// have something to show.
std::vector<LineChart> ReportCharts(const Metrics& metrics);

// Returns the mean over 1/80 of the points on either side, fewer near the start; gaps stay gaps.
std::vector<ChartPoint> Smoothed(const std::vector<ChartPoint>& points);

}  // namespace ballast
