// SPDX-License-Identifier: Apache-2.0
#include "cli/report/report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/report/report_assets.h"
#include "cli/report/report_sections.h"
#include "common/metrics/test_metric.h"
#include "common/run/metrics.h"
#include "common/run/run_folder.h"
#include "common/storage/file.h"
#include "common/text/number_text.h"

namespace ballast {
namespace {

std::string Plural(int64_t count, const char* noun) {
  return absl::StrCat(CountText(count), " ", noun, count == 1 ? "" : "s");
}

std::string LastPathPart(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return std::string(path.substr(path.rfind('/') + 1));
}

std::string Title(const ReportContent& content) {
  if (content.summary.has_value() && !content.summary->job.empty()) return content.summary->job;
  return LastPathPart(content.run_dir);
}

std::string Badge(const ReportContent& content) {
  if (!content.summary.has_value()) return "<span class=\"badge warn\">unfinished</span>";
  if (content.summary->interrupted) return "<span class=\"badge warn\">interrupted</span>";
  return "<span class=\"badge good\">finished</span>";
}

// Returns text such as "bounded, steps ahead 4, codec int8".
std::string ModeText(const Summary& summary) {
  std::string text = summary.mode;
  const auto add = [&](absl::string_view name, const std::optional<double>& number) {
    if (number.has_value()) absl::StrAppend(&text, ", ", name, " ", ValueText(*number));
  };
  add("quorum", summary.quorum);
  add("steps ahead", summary.steps_ahead);
  add("local steps", summary.local_steps);
  if (!summary.codec.empty() && summary.codec != "fp32") absl::StrAppend(&text, ", codec ", summary.codec);
  if (!summary.precision.empty() && summary.precision != "fp32") {
    absl::StrAppend(&text, ", precision ", summary.precision);
  }
  return text;
}

std::string Header(const ReportContent& content) {
  std::string html =
      absl::StrCat("<header><h1>", HtmlText(Title(content)), "</h1>", Badge(content), "</header>\n<p class=\"facts\">");
  if (content.summary.has_value()) {
    const Summary& summary = *content.summary;
    for (const std::string& fact : {ModeText(summary), Plural(summary.servers, "server"),
                                    Plural(summary.workers, "worker"), summary.device, content.run_dir}) {
      if (!fact.empty()) absl::StrAppend(&html, "<span>", HtmlText(fact), "</span>");
    }
  } else {
    absl::StrAppend(&html, "<span>", HtmlText(content.run_dir), "</span>");
  }
  return absl::StrCat(html, "</p>\n");
}

std::string Note(absl::string_view text) { return absl::StrCat("<p class=\"note\">", HtmlText(text), "</p>\n"); }

std::string Notes(const ReportContent& content) {
  const Metrics& metrics = content.metrics;
  std::string html;
  if (!content.summary.has_value()) {
    absl::StrAppend(&html, Note("There is no summary.json: the run is still in progress, was killed or failed. "
                                "This report shows the data in metrics.jsonl."));
  } else if (content.summary->interrupted) {
    absl::StrAppend(&html, Note("The run was interrupted before its last epoch; the model was saved at that point."));
  }
  if (content.summary.has_value() && content.summary->stopped_early) {
    absl::StrAppend(&html, Note("The training ended early, because the test metric did not improve."));
  }
  if (content.summary.has_value() && content.summary->best_epoch.has_value()) {
    absl::StrAppend(&html, Note(absl::StrCat("The model and the test results are those of epoch ",
                                             ValueText(*content.summary->best_epoch), ", the best.")));
  }
  if (content.summary.has_value() && content.summary->restarts + content.summary->workers_lost > 0) {
    absl::StrAppend(
        &html, Note(absl::StrCat("Processes died during the run: ", Plural(content.summary->workers_lost, "worker"),
                                 " lost, processes restarted: ", content.summary->restarts,
                                 ", examples repeated at most: ", content.summary->examples_repeated, ".")));
  }
  if (metrics.train.empty() && metrics.test.empty()) {
    absl::StrAppend(&html, Note("metrics.jsonl contains no metrics: the run has not made its first report."));
  }
  if (metrics.cut_off) {
    absl::StrAppend(&html, Note("The last line of metrics.jsonl is incomplete and was skipped."));
  }
  if (!metrics.malformed_lines.empty()) {
    const size_t named = std::min<size_t>(metrics.malformed_lines.size(), 5);
    absl::StrAppend(
        &html,
        Note(absl::StrCat(Plural(metrics.malformed_lines.size(), "line"), " of metrics.jsonl could not be read and ",
                          metrics.malformed_lines.size() == 1 ? "was" : "were", " skipped: ",
                          absl::StrJoin(metrics.malformed_lines.begin(), metrics.malformed_lines.begin() + named, ", "),
                          named < metrics.malformed_lines.size() ? ", …" : "")));
  }
  return html;
}

std::string Figure(absl::string_view name, absl::string_view value, absl::string_view more) {
  return absl::StrCat("<div><dt>", name, "</dt><dd>", value, "</dd><dd class=\"more\">", more, "</dd></div>\n");
}

// `figure` is the AUC or accuracy that this explains; a model that is not the last one may have another. Empty if the
// best epoch is not decided by that score.
std::string BestEpoch(const std::vector<EpochRow>& rows, double figure, std::optional<double> EpochRow::*score,
                      const std::function<std::string(double)>& text) {
  const auto best = std::ranges::find(rows, true, &EpochRow::best);
  if (best == rows.end() || !((*best).*score).has_value()) return "";
  const double most = *((*best).*score);
  if (best + 1 == rows.end() && most == figure) return "best of the run";
  return absl::StrCat("best ", text(most), ", epoch ", best->epoch);
}

// The figures of a model that predicts one of two labels.
std::string ClickFigures(const Summary& summary, const std::vector<EpochRow>& rows) {
  if (!summary.test_auc.has_value()) return "";
  const std::string best =
      BestEpoch(rows, *summary.test_auc, &EpochRow::test_auc, [](double auc) { return AucText(auc, std::nullopt); });
  std::string html = Figure("Test AUC", AucText(*summary.test_auc, summary.bayes_auc), best);
  if (summary.log_loss.has_value()) {
    const std::string calibration =
        summary.calibration.has_value() ? absl::StrCat("calibration ", ValueText(*summary.calibration)) : "";
    absl::StrAppend(&html, Figure("Log loss", ValueText(*summary.log_loss), calibration));
  }
  return html;
}

// An earlier release did not say which epoch.
std::string EpochText(int64_t epoch) { return epoch == 0 ? "the last epoch" : absl::StrCat("epoch ", epoch); }

std::string Figures(const ReportContent& content, const std::vector<EpochRow>& rows) {
  if (!content.summary.has_value() && rows.empty()) return "";
  const Summary summary = content.summary.has_value() ? *content.summary : SummarizeMetrics(content.metrics);
  std::string html = "<dl class=\"figures\">\n";
  absl::StrAppend(&html, ClickFigures(summary, rows));
  if (summary.test_accuracy.has_value()) {
    const std::string best = summary.test_auc.has_value()
                                 ? ""
                                 : BestEpoch(rows, *summary.test_accuracy, &EpochRow::test_accuracy, PercentText);
    absl::StrAppend(&html, Figure("Test accuracy", PercentText(*summary.test_accuracy), best));
  } else if (summary.test_loss.has_value() && !summary.log_loss.has_value()) {
    absl::StrAppend(
        &html, Figure("Test loss", ValueText(*summary.test_loss), summary.best_epoch ? "" : "after the last epoch"));
  }
  const bool both_losses = summary.test_accuracy.has_value() && summary.test_loss.has_value();
  absl::StrAppend(&html,
                  Figure("Train loss", ValueText(summary.train_loss),
                         absl::StrCat("mean over ", EpochText(summary.train_loss_epoch),
                                      both_losses ? absl::StrCat("; test ", ValueText(*summary.test_loss)) : "")));
  absl::StrAppend(&html, Figure("Training time", DurationText(summary.seconds),
                                absl::StrCat(Plural(summary.epochs, "epoch"), ", ", Plural(summary.steps, "step"),
                                             summary.workers > 1 ? " of the furthest worker" : "")));
  absl::StrAppend(&html, Figure("Samples per second", ValueText(summary.samples_per_second),
                                absl::StrCat(Plural(summary.examples, "example"), " in all of the training time")));
  if (summary.rows.has_value()) {
    absl::StrAppend(&html, Figure("Rows", CountText(*summary.rows), "of all tables, at the end"));
  }
  if (const MemoryBytes& memory = summary.memory; memory.total() > 0) {
    const std::string text = MemoryText(memory);
    absl::StrAppend(&html, Figure("Memory of worker 0", BytesText(memory.total()), text.substr(text.find(": ") + 2)));
  }
  return absl::StrCat(html, "</dl>\n");
}

std::string Charts(const Metrics& metrics, const std::optional<Summary>& summary) {
  if (metrics.train.empty() && metrics.test.empty()) return "";
  std::string html = "<div class=\"charts\">\n";
  for (const LineChart& chart : ReportCharts(metrics, summary)) absl::StrAppend(&html, RenderLineChart(chart));
  return absl::StrCat(html, "</div>\n");
}

std::string JobText(const std::string& text) {
  if (text.empty()) return "";
  return absl::StrCat("<details class=\"card\"><summary>Job file</summary><pre>", HtmlText(text), "</pre></details>\n");
}

std::string Footer(const ReportContent& content) {
  const bool known = content.summary.has_value() && !content.summary->version.empty();
  return absl::StrCat("<footer>Ballast", known ? " " : "", known ? HtmlText(content.summary->version) : "",
                      ". The data is in metrics.jsonl and summary.json, next to this file.</footer>\n");
}

// Moves a file's content to `to`. A file that does not exist is no error.
template <typename T, typename To>
absl::Status TakeIfFound(absl::StatusOr<T> content, To& to) {
  if (content.ok()) to = *std::move(content);
  return absl::IsNotFound(content.status()) ? absl::OkStatus() : content.status();
}

}  // namespace

std::string RenderPage(const std::string& title, const std::string& body) {
  return absl::StrCat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; img-src data:\">\n",
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<link rel=\"icon\" href=\"data:,\">\n",
      "<title>", HtmlText(title), " · Ballast</title>\n<style>\n", kReportCss, "</style>\n</head>\n<body>\n<main>\n",
      body, "</main>\n<script>\n", kReportJs, "</script>\n</body>\n</html>\n");
}

std::string RenderReport(const ReportContent& content) {
  const std::vector<EpochRow> rows = EpochRows(content.metrics);
  return RenderPage(
      Title(content),
      absl::StrCat(Header(content), Notes(content), Figures(content, rows), Charts(content.metrics, content.summary),
                   content.summary.has_value() ? RenderExchangeCard(*content.summary) : "", RenderEpochTable(rows),
                   JobText(content.job_text), Footer(content)));
}

absl::Status WriteReport(const std::string& run_dir, const std::string& path) {
  const RunFolder folder(run_dir);
  ReportContent content;
  content.run_dir = folder.path();
  absl::StatusOr<Metrics> metrics = ReadMetrics(folder.metrics());
  absl::StatusOr<Summary> summary = ReadSummary(folder.summary());
  if (absl::IsNotFound(metrics.status()) && absl::IsNotFound(summary.status())) {
    return absl::NotFoundError(
        absl::StrCat("run directory ", folder.path(), ": has neither metrics.jsonl nor summary.json"));
  }
  absl::Status status = TakeIfFound(std::move(metrics), content.metrics);
  status.Update(TakeIfFound(std::move(summary), content.summary));
  status.Update(TakeIfFound(ReadFile(folder.job()), content.job_text));
  if (!status.ok()) return status;
  return WriteFileAtomically(path.empty() ? folder.report() : path, {RenderReport(content)});
}

}  // namespace ballast
