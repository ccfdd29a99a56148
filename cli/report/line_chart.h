// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/report/chart_scale.h"

namespace ballast {

struct ChartPoint {
  double x = 0;
  // A point that is not finite interrupts the line.
  double y = 0;
};

// One line of a chart.
struct ChartSeries {
  std::string name;
  // 1 to 4: the page's style sheet gives them their colours. Series of one colour are shown and hidden together.
  int color = 1;
  // Drawn thin in the background and not in the legend; its extreme hundredth does not stretch the axis.
  bool faint = false;
  // A dot on each point.
  bool dots = false;
  // By rising x.
  std::vector<ChartPoint> points;
};

// One plot, as data.
struct LineChart {
  std::string title;
  // Unit or explanation, behind the title.
  std::string subtitle;
  std::string x_label;
  AxisFormat x_format = AxisFormat::kNumber;
  AxisFormat y_format = AxisFormat::kNumber;
  bool y_from_zero = false;
  bool logarithmic = false;
  // Over the whole width of the page.
  bool wide = false;
  std::vector<ChartSeries> series;
};

// A <figure> that holds the plot as inline SVG and, for the page's script, its points as JSON. All positions
// in it are shares of its size, so it fits any width without its text shrinking and needs no script for
// that. All names are escaped. Series of very many points are thinned out, their extremes kept.
std::string RenderLineChart(const LineChart& chart);

}  // namespace ballast
