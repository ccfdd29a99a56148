// SPDX-License-Identifier: Apache-2.0
#include "cli/page/panel_history.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/page/panel_list.h"
#include "common/storage/file.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

using Json = nlohmann::json;

constexpr int kMaxLinesOfSeries = 64;
constexpr uint64_t kMaxFileBytes = uint64_t{64} << 20;
// Names the format of the file.
constexpr int kVersion = 1;

bool IsLine(const PanelSeries& series) { return series.kind == "line" || series.kind == "stacked"; }

// Reads the numbers of a JSON array; null is NaN.
std::vector<double> NumbersOf(const Json& json) {
  std::vector<double> numbers;
  if (!json.is_array()) return numbers;
  for (const Json& each : json) numbers.push_back(each.is_number() ? each.get<double>() : NAN);
  return numbers;
}

// Finds a series by its panel's id and its place, so that a file of another release is read as far as it fits.
int PanelOf(const Json& id) {
  const std::vector<Panel>& panels = Panels();
  const auto found = std::find_if(panels.begin(), panels.end(), [&](const Panel& panel) {
    return id.is_string() && panel.id == id.get<std::string>();
  });
  return found == panels.end() ? -1 : static_cast<int>(found - panels.begin());
}

}  // namespace

void DownsampledLine::Add(const Bucket& bucket) {
  if (std::isnan(bucket.low) || std::isnan(bucket.high)) return;
  if (!buckets_.empty() && in_last_ < per_bucket_) {
    Bucket& last = buckets_.back();
    last = {bucket.time, bucket.x, std::min(last.low, bucket.low), std::max(last.high, bucket.high)};
    ++in_last_;
    return;
  }
  if (buckets_.size() == capacity_) {
    for (size_t i = 0; i < capacity_ / 2; ++i) {
      const Bucket &a = buckets_[2 * i], &b = buckets_[2 * i + 1];
      buckets_[i] = {b.time, b.x, std::min(a.low, b.low), std::max(a.high, b.high)};
    }
    buckets_.resize(capacity_ / 2);
    per_bucket_ *= 2;
  }
  buckets_.push_back(bucket);
  in_last_ = 1;
}

void DownsampledLine::DropAfter(double x) {
  const size_t before = buckets_.size();
  while (!buckets_.empty() && buckets_.back().x > x) buckets_.pop_back();
  if (buckets_.size() != before) in_last_ = per_bucket_;
}

void AppendNumber(double value, std::string& json) {
  if (!std::isfinite(value)) {
    absl::StrAppend(&json, "null");
  } else if (value == std::floor(value) && std::fabs(value) < 0x1p53) {
    absl::StrAppend(&json, static_cast<int64_t>(value));
  } else {
    absl::StrAppendFormat(&json, "%.6g", value);
  }
}

void AppendText(absl::string_view text, std::string& json) { absl::StrAppend(&json, JsonLine(std::string(text))); }

void AppendBuckets(const std::vector<DownsampledLine::Bucket>& buckets, std::string& json) {
  const char* before = "[[";
  const auto append = [&](auto field) {
    for (const DownsampledLine::Bucket& bucket : buckets) {
      absl::StrAppend(&json, before);
      field(bucket);
      before = ",";
    }
    if (buckets.empty()) absl::StrAppend(&json, before);
    before = "],[";
  };
  // Tenths of a second are enough.
  append([&](const auto& bucket) { absl::StrAppendFormat(&json, "%.1f", bucket.time); });
  append([&](const auto& bucket) { AppendNumber(bucket.low, json); });
  append([&](const auto& bucket) { AppendNumber(bucket.high, json); });
  append([&](const auto& bucket) { AppendNumber(bucket.x, json); });
  absl::StrAppend(&json, "]]");
}

void AppendFigures(const std::vector<SeriesFigures>& figures, std::string& json) {
  absl::StrAppend(&json, "[");
  for (const SeriesFigures& series : figures) {
    absl::StrAppend(&json, &series == figures.data() ? "" : ",", "[");
    AppendText(Panels()[series.panel].id, json);
    absl::StrAppend(&json, ",", series.series, ",[");
    for (const Figure& figure : series.figures) {
      absl::StrAppend(&json, &figure == series.figures.data() ? "[" : ",[");
      AppendText(figure.legend, json);
      absl::StrAppend(&json, ",");
      AppendNumber(figure.value, json);
      absl::StrAppend(&json, "]");
    }
    absl::StrAppend(&json, "]]");
  }
  absl::StrAppend(&json, "]");
}

void PanelHistory::Add(double time, double x, const std::vector<SeriesFigures>& figures) {
  for (const SeriesFigures& each : figures) {
    if (!IsLine(Panels()[each.panel].series[each.series])) continue;
    for (const Figure& figure : each.figures) {
      DownsampledLine* line = Line({each.panel, each.series, figure.legend});
      if (line != nullptr) line->Add(time, x, static_cast<float>(figure.value));
    }
  }
  last_ = figures;
}

DownsampledLine* PanelHistory::Line(const LineName& name) {
  if (const auto found = lines_.find(name); found != lines_.end()) return &found->second;
  int& count = counts_[{std::get<0>(name), std::get<1>(name)}];
  if (count == kMaxLinesOfSeries) return nullptr;
  ++count;
  return &lines_[name];
}

std::vector<SeriesFigures> PanelHistory::Newest() const {
  std::vector<SeriesFigures> newest;
  for (const auto& [name, line] : lines_) {
    if (line.buckets().empty()) continue;
    const auto& [panel, series, legend] = name;
    if (newest.empty() || newest.back().panel != panel || newest.back().series != series) {
      newest.push_back({.panel = panel, .series = series});
    }
    newest.back().figures.push_back({legend, line.buckets().back().high});
  }
  return newest;
}

void PanelHistory::AppendLine(const LineName& name, const DownsampledLine& line, std::string& json) {
  json.push_back('[');
  AppendText(Panels()[std::get<0>(name)].id, json);
  absl::StrAppend(&json, ",", std::get<1>(name), ",");
  AppendText(std::get<2>(name), json);
  json.push_back(',');
  AppendBuckets(line.buckets(), json);
  json.push_back(']');
}

void PanelHistory::AppendLines(std::string& json) const {
  for (const auto& [name, line] : lines_) {
    if (!json.empty()) json.push_back(',');
    AppendLine(name, line, json);
  }
}

absl::Status PanelHistory::Write(const std::string& path) const {
  std::string lines, figures;
  AppendLines(lines);
  AppendFigures(last_, figures);
  return WriteFileAtomically(
      path, {absl::StrCat("{\"version\":", kVersion, ",\"lines\":["), lines, "],\"last\":", figures, "}\n"});
}

absl::Status PanelHistory::Read(const std::string& path) {
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  if (!error && bytes > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": got ", bytes, " bytes, want at most ", kMaxFileBytes));
  }
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  if (absl::Status status = CheckJson(*text); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
  }
  const Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("version") || json["version"] != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": got another format, want version ", kVersion));
  }
  for (const Json& each : json.value("lines", Json::array())) {
    if (!each.is_array() || each.size() != 4 || !each[1].is_number_integer() || !each[2].is_string() ||
        !each[3].is_array() || each[3].size() != 4) {
      continue;
    }
    const int panel = PanelOf(each[0]);
    const int64_t series = each[1].get<int64_t>();
    if (panel < 0 || series < 0 || series >= static_cast<int64_t>(Panels()[panel].series.size())) continue;
    DownsampledLine* line = Line({panel, static_cast<int>(series), each[2].get<std::string>()});
    const std::vector<double> time = NumbersOf(each[3][0]), low = NumbersOf(each[3][1]), high = NumbersOf(each[3][2]),
                              x = NumbersOf(each[3][3]);
    if (line == nullptr || low.size() != time.size() || high.size() != time.size() || x.size() != time.size()) continue;
    for (size_t i = 0; i < time.size(); ++i) {
      line->Add({time[i], x[i], static_cast<float>(low[i]), static_cast<float>(high[i])});
    }
  }
  for (const Json& each : json.value("last", Json::array())) {
    if (!each.is_array() || each.size() != 3 || !each[1].is_number_integer() || !each[2].is_array()) {
      continue;
    }
    SeriesFigures figures{.panel = PanelOf(each[0]), .series = each[1].get<int>()};
    if (figures.panel < 0 || figures.series < 0 ||
        figures.series >= static_cast<int>(Panels()[figures.panel].series.size())) {
      continue;
    }
    for (const Json& figure : each[2]) {
      if (!figure.is_array() || figure.size() != 2 || !figure[0].is_string() || !figure[1].is_number()) continue;
      figures.figures.push_back({figure[0].get<std::string>(), figure[1].get<double>()});
    }
    last_.push_back(std::move(figures));
  }
  return absl::OkStatus();
}

}  // namespace ballast
