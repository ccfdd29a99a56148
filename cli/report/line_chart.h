// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace ballast {

// The number format of an axis.
enum class AxisFormat { kNumber, kWhole, kPercent };

// Maps an axis's values to 0..1 and places its ticks: a few, at 1, 2 or 5 times a power of ten, or equal steps apart.
// Thread safety: immutable.
class ChartScale {
 public:
  // The scale ends at `low` and `high`; both are finite, low <= high.
  static ChartScale Exact(double low, double high, AxisFormat format);
  // The scale ends at the ticks around the data.
  static ChartScale Rounded(double low, double high, AxisFormat format);
  // A logarithmic scale, with at least three ticks if the data spans more than a few per cent; 0 < low.
  static ChartScale Logarithmic(double low, double high, AxisFormat format);

  // Returns 0 at low() and 1 at high(), values beyond 0..1 outside of these, and NaN if a logarithm is undefined.
  double Fraction(double value) const;
  double low() const { return low_; }
  double high() const { return high_; }
  bool logarithmic() const { return logarithmic_; }
  const std::vector<double>& ticks() const { return ticks_; }
  // Formats 12000 as "12k"; all ticks of a scale have the same number of decimals.
  std::string Label(double tick) const;

 private:
  ChartScale(double low, double high, AxisFormat format) : low_(low), high_(high), format_(format) {}

  double low_;
  double high_;
  AxisFormat format_;
  bool logarithmic_ = false;
  // Distance between ticks; 0 if logarithmic.
  double step_ = 0;
  std::vector<double> ticks_;
};

struct ChartPoint {
  double x = 0;
  // A value that is not finite interrupts the line.
  double y = 0;
};

// One line of a chart.
struct ChartSeries {
  std::string name;
  // 1 to 8; the style sheet defines the colors. Series of the same color are shown and hidden together.
  int color = 1;
  // Draws a thin line in the background, without a legend; the most extreme 1% of its points do not stretch the axis.
  bool faint = false;
  // Draws a dot on each point.
  bool dots = false;
  // The figure in the legend; empty: the last finite value.
  std::string figure;
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
