// SPDX-License-Identifier: Apache-2.0
#include "cli/report/epoch_table.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/text/number_text.h"

namespace ballast {
namespace {

// Sums from which a row's means are computed.
struct Epoch {
  EpochRow row;
  int64_t lines = 0;
  double loss = 0;
  double samples_per_second = 0;
  double end_seconds = 0;
};

std::string Cell(const std::string& text) { return absl::StrCat("<td>", text, "</td>"); }

std::string ValueCell(const std::optional<double>& value) { return Cell(value ? ValueText(*value) : "–"); }

// Returns the first row with the best accuracy, or the end if no row has one.
std::vector<EpochRow>::const_iterator BestRow(const std::vector<EpochRow>& rows) {
  const auto best = std::max_element(rows.begin(), rows.end(), [](const EpochRow& a, const EpochRow& b) {
    return a.test_accuracy.value_or(-1) < b.test_accuracy.value_or(-1);
  });
  return best != rows.end() && best->test_accuracy.has_value() ? best : rows.end();
}

}  // namespace

std::vector<EpochRow> EpochRows(const Metrics& metrics) {
  std::map<int64_t, Epoch> epochs;
  for (const TrainMetrics& line : metrics.train) {
    Epoch& epoch = epochs[line.epoch];
    ++epoch.lines;
    epoch.loss += line.loss;
    epoch.samples_per_second += line.samples_per_second;
    epoch.row.step = std::max(epoch.row.step, line.step);
    epoch.end_seconds = std::max(epoch.end_seconds, line.seconds);
  }
  for (const TestMetrics& line : metrics.test) {
    Epoch& epoch = epochs[line.epoch];
    epoch.row.test_loss = line.loss;
    epoch.row.test_accuracy = line.accuracy;
    epoch.row.step = std::max(epoch.row.step, line.step);
    epoch.end_seconds = std::max(epoch.end_seconds, line.seconds);
  }
  std::vector<EpochRow> rows;
  double begin_seconds = 0;
  for (auto& [number, epoch] : epochs) {
    epoch.row.epoch = number;
    epoch.row.seconds = std::max(0.0, epoch.end_seconds - begin_seconds);
    begin_seconds = epoch.end_seconds;
    if (epoch.lines > 0) {
      epoch.row.train_loss = epoch.loss / epoch.lines;
      epoch.row.samples_per_second = epoch.samples_per_second / epoch.lines;
    }
    rows.push_back(epoch.row);
  }
  return rows;
}

std::string RenderEpochTable(const std::vector<EpochRow>& rows) {
  if (rows.empty()) return "";
  const auto best = BestRow(rows);
  const bool tested =
      std::any_of(rows.begin(), rows.end(), [](const EpochRow& row) { return row.test_loss.has_value(); });
  std::string html = absl::StrCat(
      "<section class=\"card\">\n<h2>Epochs</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>Epoch</th><th>Step</th>"
      "<th>Train loss</th>",
      tested ? "<th>Test loss</th>" : "", best != rows.end() ? "<th>Test accuracy</th>" : "",
      "<th>Samples/s</th><th>Time</th></tr></thead>\n<tbody>\n");
  for (auto row = rows.begin(); row != rows.end(); ++row) {
    const std::string star = row == best ? "<span class=\"star\" title=\"best\">★</span>" : "";
    absl::StrAppend(&html, row == best ? "<tr class=\"best\">" : "<tr>", Cell(CountText(row->epoch)),
                    Cell(CountText(row->step)), ValueCell(row->train_loss), tested ? ValueCell(row->test_loss) : "");
    if (best != rows.end()) {
      absl::StrAppend(&html, Cell(row->test_accuracy ? star + PercentText(*row->test_accuracy) : "–"));
    }
    absl::StrAppend(&html, ValueCell(row->samples_per_second), Cell(DurationText(row->seconds)), "</tr>\n");
  }
  return absl::StrCat(html, "</tbody>\n</table></div>\n</section>\n");
}

}  // namespace ballast
