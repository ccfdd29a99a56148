// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cli/report/line_chart.h"
#include "common/run/metrics.h"

namespace ballast {

// Which plots a run is worth: loss always; accuracy, throughput, staleness, waiting and learning rate
// where there is anything to see.
std::vector<LineChart> ReportCharts(const Metrics& metrics);

// The mean over the eightieth of the points on either side, fewer at the start; gaps stay gaps.
std::vector<ChartPoint> Smoothed(const std::vector<ChartPoint>& points);

}  // namespace ballast
