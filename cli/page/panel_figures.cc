// SPDX-License-Identifier: Apache-2.0
#include "cli/page/panel_figures.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace ballast {
namespace {

// Span of rates that name none: short, because the page follows what happens now.
constexpr double kSpan = 15;

using Take = PanelSeries::Take;
using Combine = PanelSeries::Combine;
// Labels of a group, in the order of PanelSeries::by.
using Group = std::vector<std::string>;
using Groups = std::map<Group, double>;
// Upper bounds of buckets, with the sums of their counts.
using Buckets = std::map<double, double>;

std::string InfoMetric(const std::string& of) { return absl::StrCat("ballast_", of, "_info"); }

void AddWanted(const PanelSeries& series, absl::flat_hash_set<std::string>& names) {
  const bool histogram = series.take == Take::kQuantile || series.take == Take::kMean || series.take == Take::kBuckets;
  if (!histogram) names.insert(series.metric);
  if (series.take == Take::kQuantile || series.take == Take::kBuckets) names.insert(series.metric + "_bucket");
  if (series.take == Take::kMean) names.insert({series.metric + "_sum", series.metric + "_count"});
  if (!series.of.empty()) names.insert(InfoMetric(series.of));
  if (series.minus != nullptr) AddWanted(*series.minus, names);
  if (series.divide_by != nullptr) AddWanted(*series.divide_by, names);
}

void Add(Combine combine, double value, std::optional<double>& to) {
  if (!to.has_value()) {
    to = value;
  } else {
    *to = combine == Combine::kMax   ? std::max(*to, value)
          : combine == Combine::kMin ? std::min(*to, value)
                                     : *to + value;
  }
}

// A quantity of counted buckets, interpolated in the bucket as Prometheus does. NaN of none.
double QuantileOf(const Buckets& buckets, double quantile) {
  if (buckets.empty() || buckets.rbegin()->second <= 0) return NAN;
  const double rank = quantile * buckets.rbegin()->second;
  double below = 0, low = 0;
  for (const auto& [bound, count] : buckets) {
    if (count >= rank) {
      if (std::isinf(bound)) return low;
      return count > below ? low + (bound - low) * (rank - below) / (count - below) : bound;
    }
    below = count;
    low = bound;
  }
  return low;
}

// Evaluates series of one store at one time.
class Evaluation {
 public:
  Evaluation(const SampleStore& store, double now) : store_(store), now_(now) {}

  Groups Of(const PanelSeries& series) const {
    Groups groups = series.take == Take::kQuantile ? Quantiles(series)
                    : series.take == Take::kMean   ? Means(series)
                                                   : Plain(series, series.metric);
    if (series.minus != nullptr) Apply(series, *series.minus, groups, [](double a, double b) { return a - b; });
    if (series.divide_by != nullptr) Apply(series, *series.divide_by, groups, [](double a, double b) { return a / b; });
    std::erase_if(groups, [](const auto& entry) { return !std::isfinite(entry.second); });
    if (!series.max_over_mean || groups.empty()) return groups;
    double sum = 0, largest = 0;
    for (const auto& [group, value] : groups) {
      sum += value;
      largest = std::max(largest, value);
    }
    if (sum <= 0) return {};
    return {{{}, largest * static_cast<double>(groups.size()) / sum}};
  }

  Buckets BucketsOf(const PanelSeries& series) const {
    Buckets all;
    for (auto& [group, buckets] : BucketGroups(series, {})) all = std::move(buckets);
    return all;
  }

 private:
  // Calls visit(group, sample's series) for each that the series selects.
  template <typename Visit>
  void ForEach(const PanelSeries& series, const std::string& metric, const std::vector<std::string>& by,
               Visit visit) const {
    std::map<std::string, std::string> ranks;
    if (!series.of.empty()) {
      for (const SampleStore::Series* info : store_.Of(InfoMetric(series.of), now_)) {
        const auto rank = info->labels.find(series.of);
        if (rank != info->labels.end()) ranks[info->process] = rank->second;
      }
    }
    for (const SampleStore::Series* sample : store_.Of(metric, now_)) {
      const auto rank = ranks.find(sample->process);
      if (!series.of.empty() && rank == ranks.end()) continue;
      const auto label = [&](const std::string& name) -> std::string {
        if (name == "instance") return sample->process;
        if (!series.of.empty() && name == series.of) return rank->second;
        const auto found = sample->labels.find(name);
        return found == sample->labels.end() ? "" : found->second;
      };
      const bool selected = std::all_of(series.where.begin(), series.where.end(),
                                        [&](const auto& wanted) { return label(wanted.first) == wanted.second; });
      if (!selected) continue;
      Group group;
      for (const std::string& name : by) group.push_back(label(name));
      visit(group, *sample);
    }
  }

  std::optional<double> Value(const PanelSeries& series, Take take, const SampleStore::Series& sample) const {
    if (take == Take::kRate || take == Take::kIncrease) {
      double covered = 0;
      const double increase = IncreaseOf(
          sample, series.over_seconds > 0 && take == Take::kIncrease ? series.over_seconds : kSpan, &covered);
      if (covered <= 0) return std::nullopt;
      return take == Take::kRate ? increase / covered : increase;
    }
    const double value = sample.points.back().value;
    if (take != Take::kAge) return value;
    // 0: there is no such time.
    return value > 0 ? std::optional<double>(now_ - value) : std::nullopt;
  }

  Groups Plain(const PanelSeries& series, const std::string& metric) const {
    return Combined(series, metric, series.take,
                    series.take == Take::kMax   ? Combine::kMax
                    : series.take == Take::kAge ? Combine::kMin
                                                : series.combine);
  }

  Groups Combined(const PanelSeries& series, const std::string& metric, Take take, Combine combine) const {
    std::map<Group, std::optional<double>> sums;
    ForEach(series, metric, series.by, [&](const Group& group, const SampleStore::Series& sample) {
      if (const std::optional<double> value = Value(series, take, sample)) Add(combine, *value, sums[group]);
    });
    Groups groups;
    for (const auto& [group, sum] : sums) groups[group] = sum.value_or(0);
    return groups;
  }

  Groups Means(const PanelSeries& series) const {
    const Groups sums = Combined(series, series.metric + "_sum", Take::kRate, Combine::kSum);
    Groups means = Combined(series, series.metric + "_count", Take::kRate, Combine::kSum);
    for (auto& [group, count] : means) {
      const auto sum = sums.find(group);
      count = sum == sums.end() ? NAN : sum->second / count;
    }
    return means;
  }

  std::map<Group, Buckets> BucketGroups(const PanelSeries& series, std::vector<std::string> by) const {
    by.emplace_back("le");
    std::map<Group, Buckets> groups;
    ForEach(series, series.metric + "_bucket", by, [&](const Group& labels, const SampleStore::Series& sample) {
      double bound = 0, covered = 0;
      if (!absl::SimpleAtod(labels.back(), &bound)) return;
      const double increase = IncreaseOf(sample, series.over_seconds > 0 ? series.over_seconds : kSpan, &covered);
      groups[Group(labels.begin(), labels.end() - 1)][bound] += increase;
    });
    return groups;
  }

  Groups Quantiles(const PanelSeries& series) const {
    Groups groups;
    for (const auto& [group, buckets] : BucketGroups(series, series.by)) {
      groups[group] = QuantileOf(buckets, series.quantile);
    }
    return groups;
  }

  // Combines each value with that of `other` whose labels it has.
  template <typename Operation>
  void Apply(const PanelSeries& series, const PanelSeries& other, Groups& groups, Operation operation) const {
    const Groups values = Of(other);
    for (auto& [group, value] : groups) {
      Group key;
      for (const std::string& label : other.by) {
        const size_t at = std::find(series.by.begin(), series.by.end(), label) - series.by.begin();
        key.push_back(at < group.size() ? group[at] : "");
      }
      const auto found = values.find(key);
      value = found == values.end() ? NAN : operation(value, found->second);
    }
  }

  const SampleStore& store_;
  const double now_;
};

// Returns the legend of a group.
std::string LegendOf(const PanelSeries& series, const Group& group) {
  std::vector<std::pair<std::string, std::string>> words;
  for (size_t i = 0; i < series.by.size() && i < group.size(); ++i) {
    words.emplace_back(absl::StrCat("{", series.by[i], "}"), group[i]);
  }
  return absl::StrReplaceAll(series.legend, words);
}

// Ranks come in the order of their numbers.
bool Before(const Group& a, const Group& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] == b[i]) continue;
    int number = 0, other = 0;
    if (absl::SimpleAtoi(a[i], &number) && absl::SimpleAtoi(b[i], &other)) return number < other;
    return a[i] < b[i];
  }
  return a.size() < b.size();
}

std::vector<Figure> ToFigures(const PanelSeries& series, const Groups& groups) {
  std::vector<std::pair<Group, double>> sorted(groups.begin(), groups.end());
  const bool bars = series.kind == "bar";
  if (bars && sorted.size() > kMaxLines) {
    std::partial_sort(sorted.begin(), sorted.begin() + kMaxLines, sorted.end(),
                      [](const auto& a, const auto& b) { return a.second > b.second; });
    sorted.resize(kMaxLines);
  }
  if (sorted.size() > kMaxLines) {
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    return {{absl::StrCat("largest of ", sorted.size()), sorted.back().second},
            {"median", sorted[sorted.size() / 2].second},
            {"smallest", sorted.front().second}};
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return Before(a.first, b.first); });
  std::vector<Figure> figures;
  for (const auto& [group, value] : sorted) figures.push_back({LegendOf(series, group), value});
  return figures;
}

std::vector<Figure> ToFigures(const Buckets& buckets) {
  std::vector<Figure> figures;
  double below = 0;
  bool any = false;
  for (const auto& [bound, count] : buckets) {
    figures.push_back({std::isinf(bound) ? "more" : absl::StrCat(bound), std::max(0.0, count - below)});
    any = any || count > 0;
    below = count;
  }
  // Empty buckets at the end say nothing.
  while (!figures.empty() && figures.back().value == 0) figures.pop_back();
  return any ? figures : std::vector<Figure>();
}

}  // namespace

absl::flat_hash_set<std::string> WantedSamples(const std::vector<Panel>& panels) {
  absl::flat_hash_set<std::string> names;
  for (const Panel& panel : panels) {
    for (const PanelSeries& series : panel.series) AddWanted(series, names);
  }
  return names;
}

std::vector<SeriesFigures> Evaluate(const std::vector<Panel>& panels, const SampleStore& store, double now) {
  const Evaluation evaluation(store, now);
  std::vector<SeriesFigures> all;
  for (size_t panel = 0; panel < panels.size(); ++panel) {
    for (size_t i = 0; i < panels[panel].series.size(); ++i) {
      const PanelSeries& series = panels[panel].series[i];
      std::vector<Figure> figures = series.take == Take::kBuckets ? ToFigures(evaluation.BucketsOf(series))
                                                                  : ToFigures(series, evaluation.Of(series));
      if (!figures.empty()) all.push_back({static_cast<int>(panel), static_cast<int>(i), std::move(figures)});
    }
  }
  return all;
}

}  // namespace ballast
