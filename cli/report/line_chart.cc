// SPDX-License-Identifier: Apache-2.0
#include "cli/report/line_chart.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/text/json_fields.h"
#include "common/text/number_text.h"

namespace ballast {
namespace {

constexpr int kTicks = 5;
// 1, 2 and 5 of three decades.
constexpr size_t kMaxLogarithmicTicks = 9;

// Returns the multiple (1, 2 or 5) of a power of ten that divides `span` into about kTicks pieces.
double NiceStep(double span, AxisFormat format) {
  const double rough = span / kTicks;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * 0.999) {
      step = factor * power;
      break;
    }
  }
  return format == AxisFormat::kWhole ? std::max(step, 1.0) : step;
}

// A single value has no span, so center the chart on it.
void Widen(double& low, double& high) {
  if (high - low > std::max(std::abs(low), std::abs(high)) * 1e-9) return;
  const double margin = low == 0 ? 0.5 : std::abs(low) * 0.5;
  low -= margin;
  high += margin;
}

// Returns the number of decimals that distinguish multiples of `step`.
int Decimals(double step) {
  return step > 0 ? std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 9) : 0;
}

}  // namespace

ChartScale ChartScale::Exact(double low, double high, AxisFormat format) {
  Widen(low, high);
  ChartScale scale(low, high, format);
  scale.step_ = NiceStep(high - low, format);
  const double first = std::ceil(low / scale.step_ - 1e-9);
  for (int i = 0; i <= 2 * kTicks; ++i) {
    const double tick = (first + i) * scale.step_;
    if (tick > high + scale.step_ * 1e-9) break;
    scale.ticks_.push_back(tick);
  }
  return scale;
}

ChartScale ChartScale::Rounded(double low, double high, AxisFormat format) {
  Widen(low, high);
  const double step = NiceStep(high - low, format);
  return Exact(std::floor(low / step + 1e-9) * step, std::ceil(high / step - 1e-9) * step, format);
}

ChartScale ChartScale::Logarithmic(double low, double high, AxisFormat format) {
  ChartScale scale(low * 0.9, high * 1.1, format);
  scale.logarithmic_ = true;
  const int first = static_cast<int>(std::floor(std::log10(scale.low_)));
  const int last = static_cast<int>(std::floor(std::log10(scale.high_)));
  const auto place = [&](const std::vector<double>& factors, int every) {
    scale.ticks_.clear();
    for (int power = first; power <= last; power += every) {
      for (double factor : factors) {
        const double tick = factor * std::pow(10, power);
        if (tick >= scale.low_ && tick <= scale.high_) scale.ticks_.push_back(tick);
      }
    }
  };
  place({1, 2, 5}, 1);
  if (scale.ticks_.size() > kMaxLogarithmicTicks) place({1}, std::max(1, (last - first) / kTicks));
  // Too little is spanned for a logarithm to matter.
  if (scale.ticks_.size() >= 3) return scale;
  const double step = NiceStep((scale.high_ - scale.low_) / 2, AxisFormat::kNumber);
  scale.ticks_.clear();
  for (double tick = std::ceil(scale.low_ / step) * step; tick <= scale.high_; tick += step) {
    scale.ticks_.push_back(tick);
  }
  return scale;
}

double ChartScale::Fraction(double value) const {
  if (!logarithmic_) return (value - low_) / (high_ - low_);
  if (value <= 0) return std::nan("");
  return std::log(value / low_) / std::log(high_ / low_);
}

std::string ChartScale::Label(double tick) const {
  if (std::abs(tick) < step_ * 1e-6) tick = 0;
  if (logarithmic_) return absl::StrFormat("%g", tick);
  const double largest = std::max(std::abs(low_), std::abs(high_));
  if (format_ == AxisFormat::kPercent && largest < 1e4) {
    return absl::StrFormat("%.*f%%", Decimals(step_ * 100), tick * 100);
  }
  // Use one letter per factor of 1000, or the general format if the letters or nine decimals do not suffice.
  if (largest >= 1e15 || (step_ > 0 && step_ < 1e-6)) return absl::StrFormat("%.4g", tick);
  double unit = 1;
  const char* letter = "";
  for (const char* next : {"k", "M", "G", "T"}) {
    if (largest < 10 * unit * 1000 && !(largest >= unit * 1000 && step_ >= unit * 100)) break;
    unit *= 1000;
    letter = next;
  }
  if (tick == 0) return "0";
  return absl::StrFormat("%.*f%s", Decimals(step_ / unit), tick / unit, letter);
}

namespace {

// With more points than this, a line would have more points than pixels.
constexpr size_t kMaxPoints = 1200;
// With more dots than this, they would touch.
constexpr size_t kMaxDots = 80;
// Larger values would overflow the arithmetic of an axis.
constexpr double kMaxValue = 1e150;

struct Range {
  double low = 0;
  double high = 0;
};

bool Drawable(const ChartPoint& point, bool logarithmic) {
  return std::abs(point.x) < kMaxValue && std::abs(point.y) < kMaxValue && (!logarithmic || point.y > 1 / kMaxValue);
}

// Keeps each bucket's lowest and highest point (a gap counts as lowest), so that spikes stay visible.
std::vector<ChartPoint> Thinned(const std::vector<ChartPoint>& points) {
  if (points.size() <= kMaxPoints) return points;
  const size_t buckets = kMaxPoints / 2;
  std::vector<ChartPoint> kept;
  for (size_t bucket = 0; bucket < buckets; ++bucket) {
    const auto begin = points.begin() + points.size() * bucket / buckets;
    const auto end = points.begin() + points.size() * (bucket + 1) / buckets;
    const auto below = [](const ChartPoint& a, const ChartPoint& b) {
      return std::isnan(a.y) ? !std::isnan(b.y) : a.y < b.y;
    };
    const auto [low, high] = std::minmax_element(begin, end, below);
    kept.push_back(*std::min(low, high));
    if (low != high) kept.push_back(*std::max(low, high));
  }
  return kept;
}

std::optional<Range> RangeOf(std::vector<double> values, double trim) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const size_t skip = static_cast<size_t>(values.size() * trim);
  return Range{values[skip], values[values.size() - 1 - skip]};
}

void Include(std::optional<Range>& range, const std::optional<Range>& other) {
  if (!other.has_value()) return;
  if (!range.has_value()) range = other;
  range->low = std::min(range->low, other->low);
  range->high = std::max(range->high, other->high);
}

struct Ranges {
  std::optional<Range> x;
  std::optional<Range> y;
};

Ranges RangesOf(const LineChart& chart) {
  Ranges ranges;
  for (const ChartSeries& series : chart.series) {
    std::vector<double> xs;
    std::vector<double> ys;
    for (const ChartPoint& point : series.points) {
      if (!Drawable(point, chart.logarithmic)) continue;
      xs.push_back(point.x);
      ys.push_back(point.y);
    }
    Include(ranges.x, RangeOf(std::move(xs), 0));
    Include(ranges.y, RangeOf(std::move(ys), series.faint ? 0.005 : 0));
  }
  return ranges;
}

// Draws the parts of one chart on two fixed scales.
class Plot {
 public:
  Plot(const LineChart& chart, ChartScale x, ChartScale y) : chart_(chart), x_(std::move(x)), y_(std::move(y)) {}

  std::string Axes() const {
    std::string svg = "<g class=\"axis\">\n";
    for (double tick : y_.ticks()) {
      const double at = Down(tick);
      absl::StrAppendFormat(&svg,
                            "<line class=\"grid\" x2=\"100%%\" y1=\"%.2f%%\" y2=\"%.2f%%\"/>"
                            "<text class=\"y\" x=\"-10\" y=\"%.2f%%\" dy=\".32em\">%s</text>\n",
                            at, at, at, y_.Label(tick));
    }
    for (double tick : x_.ticks()) {
      const double at = Across(tick);
      absl::StrAppendFormat(&svg,
                            "<line class=\"tick\" x1=\"%.2f%%\" x2=\"%.2f%%\" y1=\"100%%\" y2=\"100%%\"/>"
                            "<text class=\"x\" x=\"%.2f%%\" y=\"100%%\" dy=\"1.5em\">%s</text>\n",
                            at, at, at, x_.Label(tick));
    }
    absl::StrAppend(&svg, "<text class=\"label\" x=\"100%\" y=\"100%\" dy=\"2.9em\">", HtmlText(chart_.x_label),
                    "</text>\n</g>\n");
    return svg;
  }

  // Draws in a coordinate system that is stretched to the plot's size, so dots, which must stay round, are separate.
  std::string Line(const ChartSeries& series) const {
    std::string path;
    bool pen_down = false;
    for (const ChartPoint& point : Thinned(series.points)) {
      if (!Drawable(point, chart_.logarithmic)) {
        pen_down = false;
        continue;
      }
      absl::StrAppendFormat(&path, "%c%.1f %.1f", pen_down ? 'L' : 'M', 10 * Across(point.x), 10 * Down(point.y));
      pen_down = true;
    }
    return absl::StrFormat("<path class=\"line c%d%s\" d=\"%s\"/>\n", series.color, series.faint ? " faint" : "", path);
  }

  std::string Dots(const ChartSeries& series) const {
    std::string svg;
    const bool all = series.dots && series.points.size() <= kMaxDots;
    for (const ChartPoint& point : series.points) {
      if (!all && series.points.size() > 1) break;
      if (!Drawable(point, chart_.logarithmic)) continue;
      absl::StrAppendFormat(&svg, "<circle class=\"dot c%d\" cx=\"%.2f%%\" cy=\"%.2f%%\" r=\"3.5\"/>\n", series.color,
                            Across(point.x), Down(point.y));
    }
    return svg;
  }

  // Returns the data with which the page's script shows values under the pointer.
  std::string Data() const {
    nlohmann::ordered_json series_list = nlohmann::ordered_json::array();
    for (const ChartSeries& series : chart_.series) {
      nlohmann::ordered_json points = nlohmann::ordered_json::array();
      for (const ChartPoint& point : Thinned(series.points)) {
        if (Drawable(point, chart_.logarithmic)) points.push_back({point.x, point.y});
      }
      series_list.push_back(
          {{"name", series.name}, {"color", series.color}, {"faint", series.faint}, {"points", std::move(points)}});
    }
    const std::string json = JsonLine({{"x", {x_.low(), x_.high()}},
                                       {"y", {y_.low(), y_.high()}},
                                       {"log", y_.logarithmic()},
                                       {"percent", chart_.y_format == AxisFormat::kPercent},
                                       {"xLabel", chart_.x_label},
                                       {"series", std::move(series_list)}});
    // Escape, so that no name can end the script element.
    return absl::StrReplaceAll(json, {{"<", "\\u003c"}});
  }

 private:
  // Return the percentage of the plot's width from its left edge, and of its height from its top.
  double Across(double x) const { return 100 * x_.Fraction(x); }
  double Down(double y) const { return 100 * (1 - y_.Fraction(y)); }

  const LineChart& chart_;
  const ChartScale x_;
  const ChartScale y_;
};

std::string LegendFigure(const LineChart& chart, const ChartSeries& series) {
  if (!series.figure.empty()) return HtmlText(series.figure);
  for (auto point = series.points.rbegin(); point != series.points.rend(); ++point) {
    if (!Drawable(*point, chart.logarithmic)) continue;
    return chart.y_format == AxisFormat::kPercent ? PercentText(point->y) : ValueText(point->y);
  }
  return "";
}

std::string Caption(const LineChart& chart) {
  std::string html =
      absl::StrCat("<figcaption><span class=\"title\">", HtmlText(chart.title), "</span><span class=\"subtitle\">",
                   HtmlText(chart.subtitle), "</span><span class=\"legend\">");
  for (const ChartSeries& series : chart.series) {
    if (series.faint) continue;
    absl::StrAppend(&html, "<button type=\"button\" aria-pressed=\"true\" data-color=\"", series.color,
                    "\"><i class=\"swatch c", series.color, "\"></i>", HtmlText(series.name), " <b>",
                    LegendFigure(chart, series), "</b></button>");
  }
  return absl::StrCat(html, "</span></figcaption>\n");
}

}  // namespace

std::string RenderLineChart(const LineChart& chart) {
  const std::string open = absl::StrCat("<figure class=\"chart", chart.wide ? " wide" : "", "\">\n", Caption(chart));
  Ranges ranges = RangesOf(chart);
  if (!ranges.x.has_value()) return absl::StrCat(open, "<p class=\"empty\">No points yet</p>\n</figure>\n");
  if (chart.y_from_zero) Include(ranges.y, Range{0, 0});
  const Plot plot(chart, ChartScale::Exact(ranges.x->low, ranges.x->high, chart.x_format),
                  chart.logarithmic ? ChartScale::Logarithmic(ranges.y->low, ranges.y->high, chart.y_format)
                                    : ChartScale::Rounded(ranges.y->low, ranges.y->high, chart.y_format));
  std::string lines;
  std::string dots;
  for (const ChartSeries& series : chart.series) {
    absl::StrAppend(&lines, plot.Line(series));
    absl::StrAppend(&dots, plot.Dots(series));
  }
  return absl::StrCat(open, "<div class=\"plot\"><svg class=\"frame\" role=\"img\" aria-label=\"",
                      HtmlText(absl::StrCat(chart.title, " by ", chart.x_label)), "\">\n", plot.Axes(),
                      "<svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" width=\"100%\" height=\"100%\">\n",
                      lines, "</svg>\n", dots, "</svg><div class=\"tip\" hidden></div></div>\n",
                      "<script type=\"application/json\">", plot.Data(), "</script>\n</figure>\n");
}

}  // namespace ballast
