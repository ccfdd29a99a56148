// SPDX-License-Identifier: Apache-2.0
#include "cli/report/comparison.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cli/report/line_chart.h"
#include "cli/report/report.h"
#include "cli/report/report_sections.h"
#include "common/metrics/test_metric.h"
#include "common/run/run_folder.h"
#include "common/storage/file.h"
#include "common/text/number_text.h"

namespace ballast {
namespace {

// The style sheet has this many colors; further runs use them again.
constexpr int kColors = 8;
// With more columns, the table would hide the results.
constexpr size_t kMaxDifferences = 8;

constexpr char kUnset[] = "–";

using Fields = std::map<std::string, std::string>;

void AddFields(const google::protobuf::Message& message, const std::string& prefix, Fields& fields) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> set;
  reflection.ListFields(message, &set);
  for (const google::protobuf::FieldDescriptor* field : set) {
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const std::string path =
          absl::StrCat(prefix, field->name(), field->is_repeated() ? absl::StrCat("[", i, "]") : "");
      if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
        google::protobuf::TextFormat::PrintFieldValueToString(message, field, field->is_repeated() ? i : -1,
                                                              &fields[path]);
        continue;
      }
      const google::protobuf::Message& inner = field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                                                    : reflection.GetMessage(message, field);
      const size_t before = fields.size();
      AddFields(inner, path + ".", fields);
      // A message without fields, such as a layer `relu {}`.
      if (fields.size() == before) fields[path] = "{}";
    }
  }
}

// Returns the examples that the job had seen at a step, from the last training line up to it.
double ExamplesAt(int64_t step, const std::vector<TrainMetrics>& lines) {
  const TrainMetrics* last = nullptr;
  for (const TrainMetrics& line : lines) {
    if (line.step > 0 && (last == nullptr || line.step <= step)) last = &line;
  }
  return last == nullptr ? 0 : static_cast<double>(last->examples) / static_cast<double>(last->step) * step;
}

// Over examples or over seconds.
struct Axis {
  const char* name;
  std::function<double(const TrainMetrics&)> train;
  std::function<double(const TestMetrics&, const ComparedRun&)> test;
};

const std::vector<Axis>& Axes() {
  static const auto* axes = new std::vector<Axis>{
      {"examples", [](const TrainMetrics& line) { return static_cast<double>(line.examples); },
       [](const TestMetrics& line, const ComparedRun& run) { return ExamplesAt(line.step, run.metrics.train); }},
      {"seconds", [](const TrainMetrics& line) { return line.seconds; },
       [](const TestMetrics& line, const ComparedRun&) { return line.seconds; }}};
  return *axes;
}

LineChart ChartOver(const Axis& axis, const char* title, const char* subtitle) {
  return {.title = title, .subtitle = absl::StrCat(subtitle, ", over ", axis.name), .x_label = axis.name};
}

void AddSeries(const ComparedRun& run, int index, bool dots, std::vector<ChartPoint> points, LineChart& chart) {
  if (points.empty()) return;
  std::stable_sort(points.begin(), points.end(), [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
  chart.series.push_back({.name = run.name, .color = 1 + index % kColors, .dots = dots, .points = std::move(points)});
}

// A figure of a test, of which more is better: the first one that a run has is shown, otherwise the loss.
struct TestScore {
  const char* title;
  std::optional<double> TestMetrics::*field;
  AxisFormat format;
};
constexpr TestScore kTestScores[] = {{"Test AUC", &TestMetrics::auc, AxisFormat::kNumber},
                                     {"Test accuracy", &TestMetrics::accuracy, AxisFormat::kPercent}};

std::vector<LineChart> Charts(const std::vector<ComparedRun>& runs) {
  const TestScore* score = nullptr;
  for (const TestScore& one : kTestScores) {
    const auto rated = [&](const TestMetrics& line) { return (line.*one.field).has_value(); };
    const auto has = [&](const ComparedRun& run) { return std::ranges::any_of(run.metrics.test, rated); };
    if (score == nullptr && std::ranges::any_of(runs, has)) score = &one;
  }
  std::vector<LineChart> charts;
  for (const Axis& axis : Axes()) {
    LineChart loss = ChartOver(axis, "Train loss", "smoothed mean over a batch");
    LineChart test = ChartOver(axis, score != nullptr ? score->title : "Test loss", "after each epoch");
    if (score != nullptr) test.y_format = score->format;
    for (size_t index = 0; index < runs.size(); ++index) {
      const ComparedRun& run = runs[index];
      std::vector<ChartPoint> losses, tests;
      for (const TrainMetrics& line : run.metrics.train) losses.push_back({axis.train(line), line.loss});
      for (const TestMetrics& line : run.metrics.test) {
        const std::optional<double> figure = score != nullptr ? line.*(score->field) : line.loss;
        if (figure.has_value()) tests.push_back({axis.test(line, run), *figure});
      }
      AddSeries(run, static_cast<int>(index), false, Smoothed(losses), loss);
      AddSeries(run, static_cast<int>(index), true, std::move(tests), test);
    }
    charts.push_back(std::move(loss));
    if (!test.series.empty()) charts.push_back(std::move(test));
  }
  return charts;
}

// A table's column: its heading, and the cell of each run, as text.
struct Column {
  std::string name;
  std::vector<std::string> cells;
};

std::string NumberText(const std::optional<double>& number) { return number.has_value() ? ValueText(*number) : kUnset; }

std::vector<Column> Columns(const std::vector<ComparedRun>& runs) {
  std::vector<Column> columns;
  const auto add = [&](const std::string& name, const std::function<std::string(const ComparedRun&)>& cell) {
    Column& column = columns.emplace_back(Column{name, {}});
    for (const ComparedRun& run : runs) column.cells.push_back(cell(run));
  };
  add("Run", [](const ComparedRun& run) { return run.name; });
  add("State", [](const ComparedRun& run) { return StateName(run.info.state); });
  size_t shown = 0;
  for (const auto& [field, values] : JobDifferences(runs)) {
    if (++shown <= kMaxDifferences) columns.push_back({field, values});
  }
  for (const auto& [name, field] : {std::pair("Servers", &Summary::servers), std::pair("Workers", &Summary::workers)}) {
    // A run without a summary does not tell. A number that all runs have in common tells nothing.
    std::set<int64_t> numbers;
    for (const ComparedRun& run : runs) numbers.insert(run.info.summary.*field);
    numbers.erase(0);
    if (numbers.size() < 2) continue;
    add(name, [field = field](const ComparedRun& run) {
      return run.info.summary.*field == 0 ? kUnset : CountText(run.info.summary.*field);
    });
  }
  add("Epochs", [](const ComparedRun& run) { return EpochsText(run.info); });
  // A run that has made no step has no result.
  const auto add_result = [&](const std::string& name, std::string (*text)(double), double Summary::*field) {
    add(name,
        [=](const ComparedRun& run) { return run.info.summary.steps == 0 ? kUnset : text(run.info.summary.*field); });
  };
  add_result("Train loss", ValueText, &Summary::train_loss);
  add("Test loss", [](const ComparedRun& run) { return NumberText(run.info.summary.test_loss); });
  add("Test accuracy", [](const ComparedRun& run) {
    const std::optional<double>& accuracy = run.info.summary.test_accuracy;
    return accuracy.has_value() ? PercentText(*accuracy) : kUnset;
  });
  if (std::ranges::any_of(runs, [](const ComparedRun& run) { return run.info.summary.test_auc.has_value(); })) {
    add("Test AUC", [](const ComparedRun& run) {
      const Summary& summary = run.info.summary;
      return summary.test_auc.has_value() ? AucText(*summary.test_auc, summary.bayes_auc) : kUnset;
    });
  }
  add_result("Samples/s", ValueText, &Summary::samples_per_second);
  add_result("Training time", DurationText, &Summary::seconds);
  return columns;
}

std::string Table(const std::vector<ComparedRun>& runs) {
  const std::vector<Column> columns = Columns(runs);
  std::string html =
      "<section class=\"card\">\n<h2>Runs, the best first</h2>\n<div class=\"scroll all\"><table>\n<thead><tr>";
  for (const Column& column : columns) absl::StrAppend(&html, "<th>", HtmlText(column.name), "</th>");
  absl::StrAppend(&html, "</tr></thead>\n<tbody>\n");
  for (size_t run = 0; run < runs.size(); ++run) {
    absl::StrAppend(&html, "<tr>");
    for (const Column& column : columns) absl::StrAppend(&html, "<td>", HtmlText(column.cells[run]), "</td>");
    absl::StrAppend(&html, "</tr>\n");
  }
  absl::StrAppend(&html, "</tbody>\n</table></div>\n");
  if (const size_t all = JobDifferences(runs).size(); all > kMaxDifferences) {
    absl::StrAppend(&html, "<p class=\"note\">The jobs differ in ", all, " fields, of which the table has ",
                    kMaxDifferences, "; job.textproto in each run's directory has all.</p>\n");
  }
  return absl::StrCat(html, "</section>\n");
}

// Names each run after its directory, or by its whole path if two directories have the same name.
void SetNames(std::vector<ComparedRun>& runs) {
  std::multiset<std::string> names;
  const auto last = [](const ComparedRun& run) {
    return std::filesystem::path(run.info.directory).lexically_normal().filename().string();
  };
  for (const ComparedRun& run : runs) names.insert(last(run));
  for (ComparedRun& run : runs) run.name = names.count(last(run)) == 1 ? last(run) : run.info.directory;
}

std::string Failures(const std::vector<ComparedRun>& runs) {
  std::string html;
  for (const ComparedRun& run : runs) {
    if (run.info.error.empty()) continue;
    absl::StrAppend(&html, "<p class=\"note\">", HtmlText(absl::StrCat(run.name, " failed: ", run.info.error)),
                    "</p>\n");
  }
  return html;
}

}  // namespace

std::map<std::string, std::vector<std::string>> JobDifferences(const std::vector<ComparedRun>& runs) {
  std::vector<Fields> jobs;
  std::map<std::string, std::vector<std::string>> all;
  for (const ComparedRun& run : runs) {
    Fields& fields = jobs.emplace_back();
    if (run.info.job.has_value()) AddFields(*run.info.job, "", fields);
    for (const auto& [path, text] : fields) all[path];
  }
  for (auto& [path, values] : all) {
    for (const Fields& fields : jobs) {
      const auto found = fields.find(path);
      values.push_back(found == fields.end() ? kUnset : found->second);
    }
  }
  std::erase_if(all, [](const auto& entry) {
    return std::ranges::all_of(entry.second, [&](const std::string& value) { return value == entry.second[0]; });
  });
  return all;
}

std::string RenderComparison(const std::string& title, const std::vector<ComparedRun>& runs) {
  std::string body =
      absl::StrCat("<header><h1>", HtmlText(title), "</h1></header>\n<p class=\"facts\"><span>", runs.size(),
                   runs.size() == 1 ? " run" : " runs", "</span></p>\n", Failures(runs), "<div class=\"charts\">\n");
  for (const LineChart& chart : Charts(runs)) absl::StrAppend(&body, RenderLineChart(chart));
  return RenderPage(title, absl::StrCat(body, "</div>\n", Table(runs)));
}

absl::StatusOr<std::vector<RunList::Skipped>> WriteComparison(const std::string& title,
                                                              const std::vector<std::string>& directories,
                                                              const std::string& path) {
  std::vector<ComparedRun> runs;
  std::vector<RunList::Skipped> skipped;
  for (const std::string& directory : directories) {
    absl::StatusOr<RunInfo> info = ReadRun(directory);
    absl::StatusOr<Metrics> metrics = ReadMetrics(RunFolder(directory).metrics());
    // A run that failed early has no metrics.
    if (absl::IsNotFound(metrics.status())) metrics = Metrics();
    if (!info.ok() || !metrics.ok()) {
      const absl::Status& status = info.ok() ? metrics.status() : info.status();
      skipped.push_back({directory, std::string(status.message())});
      continue;
    }
    runs.push_back({"", *std::move(info), *std::move(metrics)});
  }
  if (runs.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no run can be compared", skipped.empty() ? "" : absl::StrCat("; ", skipped[0].reason)));
  }
  std::stable_sort(runs.begin(), runs.end(),
                   [](const ComparedRun& a, const ComparedRun& b) { return IsBetter(a.info, b.info); });
  SetNames(runs);
  if (absl::Status status = WriteFileAtomically(path, {RenderComparison(title, runs)}); !status.ok()) return status;
  return skipped;
}

}  // namespace ballast
