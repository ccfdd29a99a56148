// SPDX-License-Identifier: Apache-2.0
#include "cli/report/report_sections.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/metrics/test_metric.h"
#include "common/text/number_text.h"

namespace ballast {
namespace {

// With fewer points, a smoothed line would hide the data.
constexpr size_t kSmoothFrom = 30;
// If the loss falls by more than this factor, a logarithmic axis is needed to show its end.
constexpr double kLogarithmicFrom = 20;
constexpr char kStepLabel[] = "step of the furthest worker";

template <typename Line, typename Number>
std::vector<ChartPoint> Points(const std::vector<Line>& lines, Number Line::*x, double Line::*y) {
  std::vector<ChartPoint> points;
  for (const Line& line : lines) points.push_back({static_cast<double>(line.*x), line.*y});
  return points;
}

// Adds the raw values and, if there are enough points, their smoothed mean.
void AddSmoothed(std::string name, std::string figure, int color, std::vector<ChartPoint> points, LineChart& chart) {
  if (points.empty()) return;
  chart.subtitle += " since the previous point";
  if (points.size() < kSmoothFrom) {
    chart.series.push_back({.name = name, .color = color, .figure = std::move(figure), .points = std::move(points)});
    return;
  }
  chart.subtitle += ", smoothed";
  std::vector<ChartPoint> smoothed = Smoothed(points);
  chart.series.push_back({.name = "raw", .color = color, .faint = true, .points = std::move(points)});
  chart.series.push_back(
      {.name = std::move(name), .color = color, .figure = std::move(figure), .points = std::move(smoothed)});
}

// Returns "0.25 in epoch 3".
std::string InEpoch(double value, int64_t epoch) { return absl::StrCat(ValueText(value), " in epoch ", epoch); }

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
                     .subtitle = "mean over the examples",
                     .x_label = kStepLabel,
                     .x_format = AxisFormat::kWhole,
                     .wide = true};
  std::string figure;
  for (const EpochRow& row : EpochRows(metrics)) {
    if (row.train_loss.has_value()) figure = InEpoch(*row.train_loss, row.epoch);
  }
  AddSmoothed("train", figure, 1, Points(metrics.train, &TrainMetrics::step, &TrainMetrics::loss), chart);
  if (!metrics.test.empty()) {
    chart.series.push_back({.name = "test",
                            .color = 2,
                            .dots = true,
                            .figure = InEpoch(metrics.test.back().loss, metrics.test.back().epoch),
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

// Next to the curve: the best AUC that a model can have, if it is known.
LineChart AucChart(const Metrics& metrics, const std::optional<double>& bayes_auc) {
  std::vector<ChartPoint> points, best;
  for (const TestMetrics& line : metrics.test) {
    if (!line.auc.has_value()) continue;
    points.push_back({static_cast<double>(line.epoch), *line.auc});
    if (bayes_auc.has_value()) best.push_back({static_cast<double>(line.epoch), *bayes_auc});
  }
  LineChart chart = {
      .title = "Test AUC", .subtitle = "after each epoch", .x_label = "epoch", .x_format = AxisFormat::kWhole};
  if (!points.empty()) chart.series.push_back({.name = "test", .color = 2, .dots = true, .points = std::move(points)});
  if (!best.empty()) chart.series.push_back({.name = "Bayes", .color = 4, .points = std::move(best)});
  return chart;
}

// `whole` is the figure of the whole run, if it is known.
LineChart TrainChart(const Metrics& metrics, LineChart chart, int color, double TrainMetrics::*field,
                     const std::optional<double>& whole) {
  chart.y_from_zero = true;
  std::vector<ChartPoint> points = Points(metrics.train, &TrainMetrics::step, field);
  const auto visible = [](const ChartPoint& point) { return std::isfinite(point.y) && point.y != 0; };
  const std::string figure = !whole.has_value()                       ? ""
                             : chart.y_format == AxisFormat::kPercent ? PercentText(*whole)
                                                                      : ValueText(*whole);
  const std::string name = whole.has_value() ? "whole run" : "newest point";
  if (std::any_of(points.begin(), points.end(), visible)) AddSmoothed(name, figure, color, points, chart);
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

std::vector<LineChart> ReportCharts(const Metrics& metrics, const std::optional<Summary>& summary) {
  const LineChart by_step = {.x_label = kStepLabel, .x_format = AxisFormat::kWhole};
  std::vector<LineChart> charts = {LossChart(metrics), AccuracyChart(metrics),
                                   AucChart(metrics, summary.has_value() ? summary->bayes_auc : std::nullopt)};
  const auto add = [&](const char* title, const char* subtitle, AxisFormat format, int color,
                       double TrainMetrics::*field, double Summary::*whole) {
    LineChart chart = by_step;
    chart.title = title;
    chart.subtitle = subtitle;
    chart.y_format = format;
    charts.push_back(TrainChart(metrics, std::move(chart), color, field,
                                summary.has_value() ? std::make_optional((*summary).*whole) : std::nullopt));
  };
  add("Throughput", "samples per second", AxisFormat::kNumber, 3, &TrainMetrics::samples_per_second,
      &Summary::samples_per_second);
  add("Staleness", "updates from pull to apply, mean over the pushes", AxisFormat::kNumber, 4, &TrainMetrics::staleness,
      &Summary::mean_staleness);
  add("Waiting", "for servers, share of the workers' time", AxisFormat::kPercent, 4, &TrainMetrics::wait_share,
      &Summary::wait_share);
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

namespace {

// Sums over the training lines of an epoch, from which its row's means are computed while it has no line of its own.
struct Epoch {
  EpochRow row;
  double weight = 0;
  double loss = 0;
  double samples_per_second = 0;
  double end_seconds = 0;
};

std::string Cell(const std::string& text) { return absl::StrCat("<td>", text, "</td>"); }

std::string ValueCell(const std::optional<double>& value) { return Cell(value ? ValueText(*value) : "–"); }

}  // namespace

std::vector<EpochRow> EpochRows(const Metrics& metrics) {
  std::map<int64_t, Epoch> epochs;
  for (const TrainMetrics& line : metrics.train) {
    Epoch& epoch = epochs[line.epoch];
    // A file of an earlier release does not say over how many examples.
    const double weight = static_cast<double>(std::max<int64_t>(line.over_examples, 1));
    epoch.weight += weight;
    epoch.loss += weight * line.loss;
    epoch.samples_per_second += weight * line.samples_per_second;
    epoch.row.step = std::max(epoch.row.step, line.step);
    epoch.end_seconds = std::max(epoch.end_seconds, line.seconds);
  }
  for (const TestMetrics& line : metrics.test) {
    Epoch& epoch = epochs[line.epoch];
    epoch.row.test_loss = line.loss;
    epoch.row.test_accuracy = line.accuracy;
    epoch.row.test_auc = line.auc;
    epoch.row.step = std::max(epoch.row.step, line.step);
    epoch.end_seconds = std::max(epoch.end_seconds, line.seconds);
  }
  for (auto& [number, epoch] : epochs) {
    if (epoch.weight == 0) continue;
    epoch.row.train_loss = epoch.loss / epoch.weight;
    epoch.row.samples_per_second = epoch.samples_per_second / epoch.weight;
  }
  for (const EpochMetrics& line : metrics.epochs) {
    Epoch& epoch = epochs[line.epoch];
    epoch.row.train_loss = line.train_loss;
    epoch.row.samples_per_second = line.samples_per_second;
    epoch.row.step = line.step;
    epoch.end_seconds = line.seconds;
  }
  std::vector<EpochRow> rows;
  double begin_seconds = 0;
  for (auto& [number, epoch] : epochs) {
    epoch.row.epoch = number;
    epoch.row.seconds = std::max(0.0, epoch.end_seconds - begin_seconds);
    begin_seconds = epoch.end_seconds;
    rows.push_back(epoch.row);
  }
  for (std::optional<double> EpochRow::*score : {&EpochRow::test_auc, &EpochRow::test_accuracy}) {
    const auto best =
        std::ranges::max_element(rows, {}, [&](const EpochRow& row) { return (row.*score).value_or(-1); });
    if (best == rows.end() || !((*best).*score).has_value()) continue;
    best->best = true;
    break;
  }
  return rows;
}

Summary SummarizeMetrics(const Metrics& metrics) {
  Summary summary;
  summary.train_loss = std::nan("");
  for (const EpochRow& row : EpochRows(metrics)) {
    summary.steps = std::max(summary.steps, row.step);
    summary.seconds += row.seconds;
    if (row.train_loss.has_value()) {
      summary.train_loss = *row.train_loss;
      summary.train_loss_epoch = row.epoch;
    }
    if (row.test_loss.has_value()) summary.test_loss = row.test_loss;
    if (row.test_accuracy.has_value()) summary.test_accuracy = row.test_accuracy;
    if (row.test_auc.has_value()) summary.test_auc = row.test_auc;
    // An epoch has ended if it was tested, or if the next one has begun.
    summary.epochs = std::max(summary.epochs, row.test_loss.has_value() ? row.epoch : row.epoch - 1);
  }
  if (!metrics.test.empty()) {
    summary.log_loss = metrics.test.back().log_loss;
    summary.calibration = metrics.test.back().calibration;
  }
  if (!metrics.train.empty()) {
    summary.examples = metrics.train.back().examples;
    if (summary.seconds > 0) summary.samples_per_second = summary.examples / summary.seconds;
  }
  return summary;
}

std::string RenderEpochTable(const std::vector<EpochRow>& rows) {
  if (rows.empty()) return "";
  const bool tested = std::ranges::any_of(rows, [](const EpochRow& row) { return row.test_loss.has_value(); });
  const auto has = [&](std::optional<double> EpochRow::*score) {
    return std::ranges::any_of(rows, [&](const EpochRow& row) { return (row.*score).has_value(); });
  };
  const bool rated = has(&EpochRow::test_accuracy), ranked = has(&EpochRow::test_auc);
  std::string html = absl::StrCat(
      "<section class=\"card\">\n<h2>Epochs</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>Epoch</th><th>Step</th>"
      "<th>Train loss</th>",
      tested ? "<th>Test loss</th>" : "", rated ? "<th>Test accuracy</th>" : "", ranked ? "<th>Test AUC</th>" : "",
      "<th>Samples/s</th><th>Time</th></tr></thead>\n<tbody>\n");
  for (const EpochRow& row : rows) {
    const std::string star = row.best ? "<span class=\"star\" title=\"best\">★</span>" : "";
    const std::string& of_accuracy = ranked ? "" : star;
    absl::StrAppend(&html, row.best ? "<tr class=\"best\">" : "<tr>", Cell(CountText(row.epoch)),
                    Cell(CountText(row.step)), ValueCell(row.train_loss), tested ? ValueCell(row.test_loss) : "",
                    !rated ? "" : Cell(row.test_accuracy ? of_accuracy + PercentText(*row.test_accuracy) : "–"),
                    !ranked ? "" : Cell(row.test_auc ? star + AucText(*row.test_auc, std::nullopt) : "–"),
                    ValueCell(row.samples_per_second), Cell(DurationText(row.seconds)), "</tr>\n");
  }
  return absl::StrCat(html, "</tbody>\n</table></div>\n</section>\n");
}

namespace {

// One row of a histogram.
struct Bar {
  std::string label;
  int64_t count = 0;
};

std::string MicrosecondsText(double microseconds) {
  const char* unit = "µs";
  double amount = microseconds;
  for (const char* larger : {"ms", "s"}) {
    if (amount < 1000) break;
    amount /= 1000;
    unit = larger;
  }
  return absl::StrFormat("%.*f %s", amount < 9.95 && amount != std::floor(amount) ? 1 : 0, amount, unit);
}

std::vector<Bar> StalenessBars(const std::vector<int64_t>& buckets) {
  std::vector<Bar> bars;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const int64_t low = i == 0 ? 0 : int64_t{1} << (i - 1);
    const int64_t high = i == 0 ? 0 : (int64_t{1} << i) - 1;
    bars.push_back({low == high ? CountText(low) : absl::StrCat(CountText(low), "–", CountText(high)), buckets[i]});
  }
  return bars;
}

// Combines two buckets per bar, because there are many, and skips the empty ones before the first wait.
std::vector<Bar> WaitBars(const std::vector<int64_t>& buckets) {
  std::vector<Bar> bars = {{"none", buckets.empty() ? 0 : buckets[0]}};
  for (size_t i = 1; i < buckets.size(); i += 2) {
    const int64_t count = buckets[i] + (i + 1 < buckets.size() ? buckets[i + 1] : 0);
    if (bars.size() == 1 && count == 0) continue;
    bars.push_back({absl::StrCat("under ", MicrosecondsText(std::ldexp(1.0, static_cast<int>(i) + 1))), count});
  }
  return bars;
}

std::string RenderBars(absl::string_view title, absl::string_view subtitle, const std::vector<Bar>& bars) {
  int64_t all = 0, most = 0;
  for (const Bar& bar : bars) {
    all += bar.count;
    most = std::max(most, bar.count);
  }
  if (all == 0) return "";
  std::string html = absl::StrCat("<div><span class=\"title\">", title, "</span> <span class=\"subtitle\">", subtitle,
                                  "</span>\n<table class=\"bars\">\n");
  for (const Bar& bar : bars) {
    absl::StrAppend(&html, "<tr><th>", bar.label,
                    "</th><td><i style=\"width:", absl::StrFormat("%.1f", 100.0 * bar.count / most),
                    "%\"></i></td><td>", PercentText(static_cast<double>(bar.count) / all), "</td></tr>\n");
  }
  return absl::StrCat(html, "</table></div>\n");
}

// Returns "25.00%", "none of 40", or "unknown" if no server reported pulls.
std::string HeldBackText(const Distribution& waits) {
  const int64_t pulls = std::accumulate(waits.buckets.begin(), waits.buckets.end(), int64_t{0});
  if (pulls == 0) return "unknown";
  const int64_t held = pulls - waits.buckets[0];
  return held == 0 ? absl::StrCat("none of ", CountText(pulls)) : PercentText(static_cast<double>(held) / pulls);
}

// Returns the worker for whom others waited longest: "1 min 32 s for worker 3 (8.00% of the run)", or "nobody".
std::string LongestWaitText(const Summary& summary) {
  const std::vector<double>& waits = summary.caused_wait_seconds;
  const auto longest = std::max_element(waits.begin(), waits.end());
  if (longest == waits.end() || *longest == 0) return "nobody";
  const std::string share =
      summary.seconds > 0 ? absl::StrCat(" (", PercentText(*longest / summary.seconds), " of the run)") : "";
  return absl::StrCat(DurationText(*longest), " for worker ", longest - waits.begin(), share);
}

std::string Fact(absl::string_view name, const std::string& value) {
  return absl::StrCat("<tr><td>", name, "</td><td>", value, "</td></tr>\n");
}

}  // namespace

std::string RenderExchangeCard(const Summary& summary) {
  if (summary.bytes_sent == 0 && summary.staleness.buckets.empty()) return "";
  std::string html =
      "<section class=\"card\">\n<h2>Between workers and servers</h2>\n<div class=\"exchange\">\n<table>\n";
  absl::StrAppend(
      &html, Fact("Gradients", absl::StrCat(BytesText(summary.bytes_sent), " as ", HtmlText(summary.codec))),
      Fact("Values", absl::StrCat(BytesText(summary.bytes_received), " as ", HtmlText(summary.value_codec))),
      Fact("A worker sent", absl::StrCat(BytesText(summary.bytes_sent_per_step), " per step")),
      Fact("A worker received", absl::StrCat(BytesText(summary.bytes_received_per_step), " per step")),
      Fact("Workers waited for servers", absl::StrCat(PercentText(summary.wait_share), " of their time")),
      Fact("Pulls held back for other workers", HeldBackText(summary.wait_microseconds)),
      Fact("Others waited longest", LongestWaitText(summary)),
      Fact("Staleness of a push", absl::StrCat("mean ", ValueText(summary.mean_staleness), ", maximum ",
                                               CountText(summary.max_staleness), " updates")),
      Fact("Late gradients dropped", CountText(summary.dropped)));
  if (summary.loss_scale.has_value()) {
    absl::StrAppend(
        &html, Fact("Batches skipped", absl::StrCat(CountText(summary.skipped_steps), " that overflowed; loss scale ",
                                                    ValueText(*summary.loss_scale), " of worker 0")));
  }
  absl::StrAppend(&html, "</table>\n");
  const bool restarted = summary.server_seconds > 0 && summary.server_seconds < summary.seconds;
  const std::string since =
      restarted ? absl::StrCat("; the last ", DurationText(summary.server_seconds), ", since a server started again")
                : "";
  // If all bars are 0, the table says enough.
  if (summary.staleness.max > 0) {
    absl::StrAppend(&html, RenderBars("Staleness", absl::StrCat("updates, per slice", since),
                                      StalenessBars(summary.staleness.buckets)));
  }
  if (summary.wait_microseconds.max > 0) {
    const std::string subtitle =
        absl::StrCat("for other workers; mean ", MicrosecondsText(summary.wait_microseconds.mean), ", maximum ",
                     MicrosecondsText(summary.wait_microseconds.max), since);
    absl::StrAppend(&html, RenderBars("Pull waits", subtitle, WaitBars(summary.wait_microseconds.buckets)));
  }
  return absl::StrCat(html, "</div>\n</section>\n");
}

}  // namespace ballast
