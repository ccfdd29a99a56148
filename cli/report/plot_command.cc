// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/command/command.h"
#include "cli/report/comparison.h"
#include "cli/report/report.h"
#include "cli/report/run_catalog.h"
#include "common/program/arguments.h"
#include "common/run/run_folder.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kUsage[] =
    "usage: ballast plot RUN_DIR... [flags]\n\n"
    "Writes the report of a run from its metrics.jsonl and summary.json, and prints its path. Also works during the\n"
    "run. With several run directories, or one of a sweep, writes one report that compares the runs.\n\n";

bool IsBadInput(const absl::Status& status) { return absl::IsNotFound(status) || absl::IsInvalidArgument(status); }

// Returns the run directories that a word names: itself, or those of a sweep.
std::vector<std::string> RunsAt(const std::string& directory) {
  const absl::StatusOr<RunList> list = ListRuns(directory);
  if (!list.ok() || HoldsRun(directory)) return {directory};
  std::vector<std::string> directories;
  for (const RunInfo& run : list->runs) directories.push_back(run.directory);
  if (directories.empty()) directories.push_back(directory);
  return directories;
}

}  // namespace

const std::vector<FlagSpec>& PlotFlags() {
  static const auto* flags = new std::vector<FlagSpec>{
      {"out", "FILE", "File to write (default: RUN_DIR/report.html, or comparison.html for several runs)."},
      {"json", "", "Print one JSON object with the report's path."},
  };
  return *flags;
}

// `ballast plot RUN_DIR... [--out FILE] [--json]`: writes the report of one run, or one that compares several. Returns
// 1 if the report cannot be written, 2 for bad arguments or a directory without a run.
CommandResult PlotCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(PlotFlags(), args);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(PlotFlags());
    return kExitSuccess;
  }
  std::vector<std::string> directories;
  for (const std::string& word : arguments->positional()) {
    for (std::string& directory : RunsAt(word)) directories.push_back(std::move(directory));
  }
  if (directories.empty()) return Fail(err, absl::InvalidArgumentError("plot: RUN_DIR is missing"), kExitBadInput);
  if (arguments->Has("out") && arguments->Get("out", "").empty()) {
    return Fail(err, absl::InvalidArgumentError("flag --out: got \"\", want a file"), kExitBadInput);
  }
  const bool one = directories.size() == 1;
  const std::string path = arguments->Get("out", one ? RunFolder(directories[0]).report() : "comparison.html");
  absl::StatusOr<std::vector<RunList::Skipped>> skipped = std::vector<RunList::Skipped>();
  if (one) {
    if (absl::Status status = WriteReport(directories[0], path); !status.ok()) skipped = status;
  } else {
    skipped = WriteComparison("Comparison of runs", directories, path);
  }
  if (!skipped.ok()) {
    return Fail(err, skipped.status(), IsBadInput(skipped.status()) ? kExitBadInput : kExitFailure);
  }
  for (const RunList::Skipped& run : *skipped) err << "skipped: " << run.reason << "\n";
  if (!arguments->Has("json")) {
    out << path << std::endl;
  } else if (one) {
    out << JsonLine({{"run_dir", RunFolder(directories[0]).path()}, {"report", path}}) << std::endl;
  } else {
    Json left_out = Json::array();
    for (const RunList::Skipped& run : *skipped) {
      left_out.push_back({{"directory", run.directory}, {"reason", run.reason}});
    }
    out << JsonLine({{"run_dirs", directories}, {"skipped", left_out}, {"report", path}}) << std::endl;
  }
  return kExitSuccess;
}

}  // namespace ballast
