// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/report/chart_scale.h"

namespace ballast {

struct ChartPoint {
  double x = 0;
  // A value that is not finite interrupts the line.
  double y = 0;
};

// One line of a chart.
struct ChartSeries {
  std::string name;
  // 1 to 4; the style sheet defines the colors. Series of the same color are shown and hidden together.
  int color = 1;
  // Draws a thin line in the background, without a legend; the most extreme 1% of its points do not stretch the axis.
  bool faint = false;
  // Draws a dot on each point.
  bool dots = false;
  // In ascending order of x.
  std::vector<ChartPoint> points;
};

// The data of one plot.
struct LineChart {
  std::string title;
  // Unit or explanation, shown after the title.
  std::string subtitle;
  std::string x_label;
  AxisFormat x_format = AxisFormat::kNumber;
  AxisFormat y_format = AxisFormat::kNumber;
  bool y_from_zero = false;
  bool logarithmic = false;
  // Spans the full width of the page.
  bool wide = false;
  std::vector<ChartSeries> series;
};

// Returns a <figure> with the plot as inline SVG and, for the page's script, its points as JSON. All positions are
// fractions of the size, so the figure fits any width without a script or smaller text. All names are escaped. Series
// with very many points are downsampled; their extremes are kept.
std::string RenderLineChart(const LineChart& chart);

}  // namespace ballast
