// SPDX-License-Identifier: Apache-2.0
#include "cli/page/metric_samples.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace ballast {
namespace {

constexpr double kFresh = 10;
constexpr double kDense = 20;
constexpr double kSparse = 5;
constexpr double kKept = 310;

// Reads a quoted text with escapes from the front.
bool TakeQuoted(absl::string_view& text, std::string& value) {
  if (text.empty() || text[0] != '"') return false;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') {
      text.remove_prefix(i + 1);
      return true;
    }
    if (text[i] == '\\' && i + 1 < text.size()) {
      ++i;
      value += text[i] == 'n' ? '\n' : text[i];
    } else {
      value += text[i];
    }
  }
  return false;
}

// Reads `{a="b",c="d"}` from the front.
bool TakeLabels(absl::string_view& text, std::map<std::string, std::string>& labels) {
  text.remove_prefix(1);
  while (true) {
    text = absl::StripLeadingAsciiWhitespace(text);
    if (!text.empty() && text[0] == '}') {
      text.remove_prefix(1);
      return true;
    }
    const size_t equals = text.find('=');
    if (equals == text.npos) return false;
    const std::string name(absl::StripAsciiWhitespace(text.substr(0, equals)));
    text.remove_prefix(equals + 1);
    if (!TakeQuoted(text, labels[name])) return false;
    text = absl::StripLeadingAsciiWhitespace(text);
    if (!text.empty() && text[0] == ',') text.remove_prefix(1);
  }
}

}  // namespace

std::vector<MetricSample> ParseMetricsText(absl::string_view text,
                                           const std::function<bool(absl::string_view name)>& wanted) {
  std::vector<MetricSample> samples;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    absl::string_view line = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    const size_t name_end = line.find_first_of("{ \t");
    if (name_end == line.npos || !wanted(line.substr(0, name_end))) continue;
    MetricSample sample{.name = std::string(line.substr(0, name_end))};
    line.remove_prefix(name_end);
    if (line[0] == '{' && !TakeLabels(line, sample.labels)) continue;
    line = absl::StripAsciiWhitespace(line);
    // A time may follow, which our own pages do not have.
    if (!absl::SimpleAtod(line.substr(0, line.find(' ')), &sample.value)) continue;
    samples.push_back(std::move(sample));
  }
  return samples;
}

void SampleStore::Add(const std::string& process, double time, const std::vector<MetricSample>& samples) {
  for (const MetricSample& sample : samples) {
    Series& series = metrics_[sample.name][{process, sample.labels}];
    if (series.points.empty()) {
      series.process = process;
      series.labels = sample.labels;
    }
    std::deque<Point>& points = series.points;
    points.push_back({time, sample.value});
    while (points.front().time < time - kKept) points.pop_front();
    // Thins out what has just become old: of the points before the dense ones only the last may be too close.
    size_t old = points.size();
    while (old > 0 && points[old - 1].time > time - kDense) --old;
    if (old >= 2 && points[old - 1].time - points[old - 2].time < kSparse) points.erase(points.begin() + old - 1);
  }
}

std::vector<const SampleStore::Series*> SampleStore::Of(const std::string& metric, double now) const {
  std::vector<const Series*> found;
  const auto all = metrics_.find(metric);
  if (all == metrics_.end()) return found;
  for (const auto& [key, series] : all->second) {
    if (series.points.back().time >= now - kFresh) found.push_back(&series);
  }
  return found;
}

void SampleStore::Prune(double now) {
  for (auto& [name, all] : metrics_) {
    std::erase_if(all, [&](const auto& entry) { return entry.second.points.back().time < now - kKept; });
  }
}

double IncreaseOf(const SampleStore::Series& series, double span, double* covered) {
  const std::deque<SampleStore::Point>& points = series.points;
  size_t first = points.size() - 1;
  while (first > 0 && points[first - 1].time >= points.back().time - span) --first;
  // The point before the span, if it is near, so that a span shorter than the scrapes' interval has two points.
  if (first == points.size() - 1 && first > 0) --first;
  double increase = 0;
  for (size_t i = first + 1; i < points.size(); ++i) {
    const double from = points[i - 1].value, to = points[i].value;
    increase += to >= from ? to - from : to;
  }
  *covered = points.back().time - points[first].time;
  return increase;
}

}  // namespace ballast
