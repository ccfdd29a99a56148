// SPDX-License-Identifier: Apache-2.0
#include "cli/report/report_charts.h"

#include <algorithm>
#include <cmath>

namespace ballast {
namespace {

// With fewer points, a smoothed line would hide the data.
constexpr size_t kSmoothFrom = 30;
// If the loss falls by more than this factor, a logarithmic axis is needed to show its end.
constexpr double kLogarithmicFrom = 20;

template <typename Line, typename Number>
std::vector<ChartPoint> Points(const std::vector<Line>& lines, Number Line::*x, double Line::*y) {
  std::vector<ChartPoint> points;
  for (const Line& line : lines) points.push_back({static_cast<double>(line.*x), line.*y});
  return points;
}

// Adds the raw values and, if there are enough points, their smoothed mean.
void AddSmoothed(std::string name, int color, std::vector<ChartPoint> points, LineChart& chart) {
  if (points.empty()) return;
  if (points.size() < kSmoothFrom) {
    chart.series.push_back({.name = name, .color = color, .points = std::move(points)});
    return;
  }
  std::vector<ChartPoint> smoothed = Smoothed(points);
  chart.series.push_back({.name = "raw", .color = color, .faint = true, .points = std::move(points)});
  chart.series.push_back({.name = std::move(name), .color = color, .points = std::move(smoothed)});
}

bool FallsFar(const LineChart& chart) {
  double low = INFINITY;
  double high = 0;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      if (series.faint || !std::isfinite(point.y)) continue;
      low = std::min(low, point.y);
      high = std::max(high, point.y);
    }
  }
  return low > 0 && high > low * kLogarithmicFrom;
}

LineChart LossChart(const Metrics& metrics) {
  LineChart chart = {.title = "Loss",
                     .subtitle = "mean over a batch",
                     .x_label = "step",
                     .x_format = AxisFormat::kWhole,
                     .wide = true};
  AddSmoothed("train", 1, Points(metrics.train, &TrainMetrics::step, &TrainMetrics::loss), chart);
  if (!metrics.test.empty()) {
    chart.series.push_back({.name = "test",
                            .color = 2,
                            .dots = true,
                            .points = Points(metrics.test, &TestMetrics::step, &TestMetrics::loss)});
  }
  chart.logarithmic = FallsFar(chart);
  if (chart.logarithmic) chart.subtitle += ", logarithmic axis";
  return chart;
}

LineChart AccuracyChart(const Metrics& metrics) {
  std::vector<ChartPoint> points;
  for (const TestMetrics& line : metrics.test) {
    if (line.accuracy.has_value()) points.push_back({static_cast<double>(line.epoch), *line.accuracy});
  }
  LineChart chart = {.title = "Test accuracy",
                     .subtitle = "after each epoch",
                     .x_label = "epoch",
                     .x_format = AxisFormat::kWhole,
                     .y_format = AxisFormat::kPercent};
  if (!points.empty()) chart.series.push_back({.name = "test", .color = 2, .dots = true, .points = std::move(points)});
  return chart;
}

LineChart TrainChart(const Metrics& metrics, LineChart chart, int color, double TrainMetrics::*field) {
  chart.y_from_zero = true;
  std::vector<ChartPoint> points = Points(metrics.train, &TrainMetrics::step, field);
  const auto visible = [](const ChartPoint& point) { return std::isfinite(point.y) && point.y != 0; };
  if (std::any_of(points.begin(), points.end(), visible))
    AddSmoothed(points.size() < kSmoothFrom ? "measured" : "smoothed", color, points, chart);
  return chart;
}

// Returns whether the rate changes: a constant rate is a number in the job file and needs no curve.
bool LearningRateChanges(const Metrics& metrics) {
  const auto differs = [](const TrainMetrics& a, const TrainMetrics& b) { return a.learning_rate != b.learning_rate; };
  return std::adjacent_find(metrics.train.begin(), metrics.train.end(), differs) != metrics.train.end();
}

}  // namespace

std::vector<ChartPoint> Smoothed(const std::vector<ChartPoint>& points) {
  const size_t reach = std::max<size_t>(points.size() / 80, 1);
  // Prefix sums over the finite values before each point.
  std::vector<double> sums = {0};
  std::vector<size_t> counts = {0};
  for (const ChartPoint& point : points) {
    const bool finite = std::isfinite(point.y);
    sums.push_back(sums.back() + (finite ? point.y : 0));
    counts.push_back(counts.back() + (finite ? 1 : 0));
  }
  std::vector<ChartPoint> smoothed = points;
  for (size_t i = 0; i < points.size(); ++i) {
    if (!std::isfinite(points[i].y)) continue;
    // The window is narrow at the start, where the curve is steep, and wide at the end, whose value is quoted.
    const size_t begin = i - std::min(i, reach);
    const size_t end = std::min(points.size(), i + std::min(i, reach) + 1);
    smoothed[i].y = (sums[end] - sums[begin]) / (counts[end] - counts[begin]);
  }
  return smoothed;
}

std::vector<LineChart> ReportCharts(const Metrics& metrics) {
  const LineChart by_step = {.x_label = "step", .x_format = AxisFormat::kWhole};
  std::vector<LineChart> charts = {LossChart(metrics), AccuracyChart(metrics)};
  const auto add = [&](const char* title, const char* subtitle, AxisFormat format, int color,
                       double TrainMetrics::*field) {
    LineChart chart = by_step;
    chart.title = title;
    chart.subtitle = subtitle;
    chart.y_format = format;
    charts.push_back(TrainChart(metrics, std::move(chart), color, field));
  };
  add("Throughput", "samples per second", AxisFormat::kNumber, 3, &TrainMetrics::samples_per_second);
  add("Staleness", "updates, pull to push", AxisFormat::kNumber, 4, &TrainMetrics::staleness);
  add("Waiting", "share of each step", AxisFormat::kPercent, 4, &TrainMetrics::wait_share);
  if (LearningRateChanges(metrics)) {
    LineChart chart = by_step;
    chart.title = "Learning rate";
    chart.y_from_zero = true;
    chart.series.push_back({.name = "rate",
                            .color = 1,
                            .points = Points(metrics.train, &TrainMetrics::step, &TrainMetrics::learning_rate)});
    charts.push_back(std::move(chart));
  }
  charts.erase(std::remove_if(charts.begin() + 1, charts.end(), [](const LineChart& c) { return c.series.empty(); }),
               charts.end());
  return charts;
}

}  // namespace ballast
