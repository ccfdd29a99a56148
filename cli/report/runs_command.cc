// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command/command.h"
#include "cli/report/run_catalog.h"
#include "common/program/arguments.h"
#include "common/text/json_fields.h"
#include "common/text/number_text.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kUsage[] =
    "usage: ballast runs [DIR] [flags]\n\n"
    "Lists the runs in the directory DIR (default: runs), newest first, with their results: the test AUC, accuracy or\n"
    "loss after the last epoch, and samples per second over the whole run. Times are in UTC.\n\n";

// Lines about skipped directories; --json has all.
constexpr size_t kMaxSkipped = 10;

void PrintRuns(const RunList& list, std::ostream& out, std::ostream& err) {
  std::vector<std::vector<std::string>> rows = {
      {"started", "job", "mode", "state", "epochs", "test", "samples/s", "directory"}};
  for (const RunInfo& run : list.runs) {
    const bool trained = run.summary.steps > 0;
    rows.push_back({absl::FormatTime("%Y-%m-%d %H:%M", run.started, absl::UTCTimeZone()), run.summary.job, run.mode,
                    StateName(run.state), EpochsText(run), TestText(run),
                    trained ? ValueText(run.summary.samples_per_second) : "-",
                    absl::StrCat(run.directory, ErrorText(run))});
  }
  if (!list.runs.empty()) out << TextTable(rows) << std::flush;
  const size_t named = std::min(list.skipped.size(), kMaxSkipped);
  for (size_t i = 0; i < named; ++i) err << "skipped: " << list.skipped[i].reason << "\n";
  if (named < list.skipped.size()) err << "skipped: " << list.skipped.size() - named << " more directories\n";
  if (list.runs.empty()) err << "no runs\n";
}

}  // namespace

const std::vector<FlagSpec>& RunsFlags() {
  static const auto* flags = new std::vector<FlagSpec>{{"json", "", "Print one JSON object."}};
  return *flags;
}

// `ballast runs`: lists the runs in a directory with their results.
CommandResult RunsCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(RunsFlags(), args);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(RunsFlags());
    return kExitSuccess;
  }
  const std::vector<std::string>& words = arguments->positional();
  if (words.size() > 1) {
    return Fail(err, absl::InvalidArgumentError(absl::StrFormat("runs: got %d directories, want one", words.size())),
                kExitBadInput);
  }
  const absl::StatusOr<RunList> list = ListRuns(words.empty() ? kRuns : words[0]);
  if (!list.ok()) return Fail(err, list.status(), kExitBadInput);
  if (!arguments->Has("json")) {
    PrintRuns(*list, out, err);
    return kExitSuccess;
  }
  Json runs = Json::array(), skipped = Json::array();
  for (const RunInfo& run : list->runs) runs.push_back(RunToJson(run));
  for (const RunList::Skipped& one : list->skipped) {
    skipped.push_back({{"directory", one.directory}, {"reason", one.reason}});
  }
  out << JsonLine({{"runs", runs}, {"skipped", skipped}}) << std::endl;
  return kExitSuccess;
}

}  // namespace ballast
