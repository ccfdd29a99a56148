// SPDX-License-Identifier: Apache-2.0
#include "cli/page/panel_list.h"

#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "cli/page/page_assets.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

PanelSeries::Take TakeOf(const std::string& word) {
  static const auto* const takes = new std::map<std::string, PanelSeries::Take>{
      {"value", PanelSeries::Take::kValue}, {"max", PanelSeries::Take::kMax},
      {"rate", PanelSeries::Take::kRate},   {"increase", PanelSeries::Take::kIncrease},
      {"mean", PanelSeries::Take::kMean},   {"buckets", PanelSeries::Take::kBuckets},
      {"age", PanelSeries::Take::kAge}};
  if (absl::StartsWith(word, "quantile:")) return PanelSeries::Take::kQuantile;
  const auto found = takes->find(word);
  return found == takes->end() ? PanelSeries::Take::kValue : found->second;
}

// Returns the seconds of "5m".
double SecondsOf(const std::string& span) {
  double number = 0;
  if (span.empty() || !absl::SimpleAtod(span.substr(0, span.size() - 1), &number)) return 0;
  return span.back() == 'm' ? 60 * number : number;
}

PanelSeries ReadSeries(const Json& json) {
  PanelSeries series;
  series.metric = json.value("metric", "");
  const std::string take = json.value("take", "value");
  series.take = TakeOf(take);
  if (series.take == PanelSeries::Take::kQuantile &&
      !absl::SimpleAtod(take.substr(take.find(':') + 1), &series.quantile)) {
    series.quantile = 0.5;
  }
  series.over_seconds = SecondsOf(json.value("over", ""));
  if (json.contains("where")) {
    for (const auto& [label, value] : json["where"].items()) series.where.emplace_back(label, value.get<std::string>());
  }
  series.of = json.value("of", "");
  series.by = json.value("by", std::vector<std::string>());
  const std::string combine = json.value("agg", "sum");
  series.combine = combine == "max"   ? PanelSeries::Combine::kMax
                   : combine == "min" ? PanelSeries::Combine::kMin
                                      : PanelSeries::Combine::kSum;
  series.max_over_mean = json.value("then", "") == "max_over_mean";
  series.legend = json.value("legend", series.metric);
  series.chart = json.value("chart", "");
  series.unit = json.value("unit", "");
  series.kind = json.value("kind", "");
  if (json.contains("minus")) series.minus = std::make_shared<PanelSeries>(ReadSeries(json["minus"]));
  if (json.contains("divide_by")) series.divide_by = std::make_shared<PanelSeries>(ReadSeries(json["divide_by"]));
  return series;
}

std::vector<Panel> ReadPanels() {
  std::vector<Panel> panels;
  // Our own file, which panel_list_test checks.
  for (const Json& json : Json::parse(PanelsText(), nullptr, /*allow_exceptions=*/false)) {
    Panel panel{.id = json.value("id", ""),
                .title = json.value("title", ""),
                .unit = json.value("unit", ""),
                .kind = json.value("kind", "line"),
                .help = json.value("help", ""),
                .empty = json.value("empty", "")};
    for (const Json& series : json["series"]) {
      panel.series.push_back(ReadSeries(series));
      if (panel.series.back().unit.empty()) panel.series.back().unit = panel.unit;
      if (panel.series.back().kind.empty()) panel.series.back().kind = panel.kind;
    }
    panels.push_back(std::move(panel));
  }
  return panels;
}

}  // namespace

const std::vector<Panel>& Panels() {
  static const auto* const panels = new std::vector<Panel>(ReadPanels());
  return *panels;
}

absl::string_view PanelsText() { return kPanelsJson; }

}  // namespace ballast
