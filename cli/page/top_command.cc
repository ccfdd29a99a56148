// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cli/display/progress_display.h"
#include "cli/page/page_command.h"
#include "cli/page/panel_list.h"
#include "cli/page/run_head.h"
#include "cli/page/run_watch.h"
#include "cli/page/watched_runs.h"
#include "common/program/arguments.h"
#include "common/program/signal_watch.h"
#include "common/text/json_fields.h"
#include "common/text/number_text.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kRound = absl::Seconds(1);
// With --once: rates need two rounds.
constexpr int kOnceRounds = 3;
constexpr size_t kTitleWidth = 34;

constexpr char kUsage[] =
    "usage: ballast top [RUN_DIR|ADDRESS] [flags]\n\n"
    "Shows the figures of ballast page in the terminal, and renews them once a second: of the newest run under runs/ "
    "if\n"
    "none is named. ADDRESS (host:port) names a ballast_server instead. Ends with the run, or with Ctrl-C.\n\n";

const std::vector<FlagSpec>& Flags() {
  static const auto* flags = new std::vector<FlagSpec>([] {
    std::vector<FlagSpec> all = {{"once", "", "Print the figures once, after about two seconds, and end."},
                                 {"json", "", "Print one JSON object a second, or one with --once."},
                                 {"run", "DIR", "Run directory of the launch that the server at ADDRESS belongs to."}};
    all.insert(all.end(), SecurityFlags().begin(), SecurityFlags().end());
    return all;
  }());
  return *flags;
}

std::string SecondsText(double seconds) {
  if (seconds >= 60) return DurationText(seconds);
  if (seconds >= 1) return absl::StrFormat("%.3g s", seconds);
  return seconds >= 1e-3 ? absl::StrFormat("%.3g ms", seconds * 1e3) : absl::StrFormat("%.3g us", seconds * 1e6);
}

// Returns a number with its unit, as people read it.
std::string FigureText(double value, const std::string& unit) {
  if (unit == "bytes") return BytesText(value);
  if (unit == "bytes/s") return BytesText(value) + "/s";
  if (unit == "s") return SecondsText(value);
  if (unit == "ratio") return absl::StrFormat("%.3g%%", 100 * value);
  if (unit == "times") return absl::StrFormat("%.3gx", value);
  if (unit == "1/s") return ValueText(value) + "/s";
  if (unit == "yes or no") return value >= 1 ? "yes" : "no";
  return unit.empty() ? ValueText(value) : absl::StrCat(ValueText(value), " ", unit);
}

// Appends words to lines of at most `width` columns; lines after the first begin with blanks.
class Wrapper {
 public:
  Wrapper(std::string& text, size_t width) : text_(text), width_(std::max<size_t>(width, kTitleWidth + 20)) {}
  void Begin(const std::string& title) {
    absl::StrAppendFormat(&text_, "%-*s", kTitleWidth, title);
    column_ = kTitleWidth;
  }
  void Add(const std::string& word) {
    if (column_ > kTitleWidth && column_ + word.size() + 2 > width_) {
      absl::StrAppend(&text_, "\n", std::string(kTitleWidth, ' '));
      column_ = kTitleWidth;
    }
    absl::StrAppend(&text_, column_ > kTitleWidth ? "  " : "", word);
    column_ += word.size() + (column_ > kTitleWidth ? 2 : 0);
  }
  void End() { absl::StrAppend(&text_, "\n"); }

 private:
  std::string& text_;
  const size_t width_;
  size_t column_ = 0;
};

std::string HeadText(const RunHead& head) {
  std::string text = absl::StrCat(head.job.empty() ? head.name : head.job, "  ", head.state, "  ", head.mode);
  if (head.epoch > 0) {
    absl::StrAppend(&text, "  epoch ", head.epoch, head.epochs > 0 ? absl::StrCat("/", head.epochs) : "");
  }
  if (head.step > 0) absl::StrAppend(&text, "  step ", CountText(head.step));
  if (head.live && head.time_left >= 0)
    absl::StrAppend(&text, "  ", FormatClock(absl::Seconds(head.time_left)), " left");
  absl::StrAppend(&text, "\n");
  if (!head.error.empty()) absl::StrAppend(&text, "  ", head.error, "\n");
  for (const std::string& missing : head.missing) absl::StrAppend(&text, "  missing: ", missing, "\n");
  for (const std::string& silent : head.silent) absl::StrAppend(&text, "  no answer: ", silent, "\n");
  for (const std::string& wait : head.waits) absl::StrAppend(&text, "  longest wait: ", wait, "\n");
  if (!head.live) absl::StrAppend(&text, "  the run has ended: its last figures, as far as a page has recorded them\n");
  return text;
}

std::string TableText(const RunHead& head, const std::vector<SeriesFigures>& figures, size_t width) {
  std::string text = HeadText(head);
  const std::vector<Panel>& panels = Panels();
  for (size_t panel = 0; panel < panels.size(); ++panel) {
    // The head says that.
    if (panels[panel].kind == "stat") continue;
    // By the name of the chart, in their order.
    std::vector<std::pair<std::string, std::vector<std::string>>> charts;
    for (const SeriesFigures& each : figures) {
      if (each.panel != static_cast<int>(panel)) continue;
      const PanelSeries& series = panels[panel].series[each.series];
      if (charts.empty() || charts.back().first != series.chart)
        charts.emplace_back(series.chart, std::vector<std::string>());
      for (const Figure& figure : each.figures) {
        charts.back().second.push_back(
            series.kind == "histogram" ? absl::StrCat("<=", figure.legend, ": ", CountText(std::llround(figure.value)))
                                       : absl::StrCat(figure.legend, " ", FigureText(figure.value, series.unit)));
      }
    }
    Wrapper lines(text, width);
    for (const auto& [chart, words] : charts) {
      const bool first = chart == charts.front().first;
      const std::string title = absl::StrFormat("%2s %s", first ? absl::StrCat(panel + 1) : "",
                                                chart.empty() || (first && charts.size() == 1) ? panels[panel].title
                                                : first ? absl::StrCat(panels[panel].title, ": ", chart)
                                                        : absl::StrCat("  ", chart));
      lines.Begin(title.substr(0, kTitleWidth - 1));
      for (const std::string& word : words) lines.Add(word);
      lines.End();
    }
    if (charts.empty()) {
      lines.Begin(absl::StrFormat("%2d %s", panel + 1, panels[panel].title));
      lines.Add(head.live ? absl::StrCat("no data: ", panels[panel].empty) : "not recorded");
      lines.End();
    }
  }
  return text;
}

std::string FiguresJson(const RunHead& head, const std::vector<SeriesFigures>& figures) {
  Json list = Json::array();
  for (const SeriesFigures& each : figures) {
    const Panel& panel = Panels()[each.panel];
    const PanelSeries& series = panel.series[each.series];
    for (const Figure& figure : each.figures) {
      list.push_back({{"panel", panel.id},
                      {"chart", series.chart},
                      {"name", figure.legend},
                      {"value", figure.value},
                      {"unit", series.unit}});
    }
  }
  Json object = Json::object();
  object["run"] = ParseJsonObject(HeadJson(head)).value_or(Json::object());
  object["figures"] = std::move(list);
  return JsonLine(object);
}

}  // namespace

const std::vector<FlagSpec>& TopFlags() { return Flags(); }

CommandResult TopCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(Flags(), args);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(Flags());
    return kExitSuccess;
  }
  if (arguments->positional().size() > 1) {
    return Fail(err,
                absl::InvalidArgumentError(absl::StrCat("top: got ", arguments->positional().size(),
                                                        " words, want one run directory or address, host:port")),
                kExitBadInput);
  }
  const auto runs = FindRuns("top", *arguments, /*record=*/false);
  if (!runs.ok()) return Fail(err, runs.status(), ExitStatusOf(runs.status()));
  RunWatch& run = *runs->front();
  absl::Notification stop;
  std::atomic<bool> stopped = false;
  const SignalWatch signals([&](int, int) {
    if (!stopped.exchange(true)) stop.Notify();
  });
  const bool once = arguments->Has("once"), json = arguments->Has("json");
  const bool in_place = !once && !json && &out == &std::cout && isatty(STDOUT_FILENO) == 1;
  for (int round = 1;; ++round) {
    const absl::Time next = absl::Now() + kRound;
    run.Step();
    const RunHead head = run.head();
    // A long file is read in several rounds.
    if (head.read < 1 && !stop.HasBeenNotified()) continue;
    const bool last = !head.live || (once && round >= kOnceRounds);
    if (!once || last) {
      const std::vector<SeriesFigures> figures = run.figures();
      if (json) {
        out << FiguresJson(head, figures) << std::endl;
      } else {
        const size_t width = in_place ? static_cast<size_t>(TerminalWidth()) : 118;
        out << (in_place ? "\x1b[H\x1b[J" : "") << TableText(head, figures, width) << (in_place || last ? "" : "\n")
            << std::flush;
      }
    }
    if (last) {
      if (head.state == "unreachable") return Fail(err, absl::UnavailableError(head.error), kExitFailure);
      return kExitSuccess;
    }
    if (stop.WaitForNotificationWithTimeout(next - absl::Now())) return kExitSuccess;
  }
}

}  // namespace ballast
