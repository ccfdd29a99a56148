// SPDX-License-Identifier: Apache-2.0
#include "cli/report/plot_command.h"

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/report/report.h"
#include "common/run/run_folder.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

constexpr int kSuccess = 0;
constexpr int kFailure = 1;
constexpr int kBadInput = 2;

constexpr char kUsage[] =
    "usage: ballast plot RUN_DIR [--json]\n"
    "\n"
    "Writes RUN_DIR/report.html from the run's metrics.jsonl and summary.json, and prints its path. Also works\n"
    "during the run.\n"
    "\n"
    "  --json   Print one JSON object with run_dir and report instead.\n"
    "  --help   Show this help.\n";

int UsageError(std::ostream& err, const std::string& message) {
  err << kUsage << "error: " << message << "\n";
  return kBadInput;
}

bool IsBadInput(const absl::Status& status) { return absl::IsNotFound(status) || absl::IsInvalidArgument(status); }

}  // namespace

int PlotCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  std::string run_dir;
  bool json = false;
  bool only_paths = false;
  for (const std::string& arg : args) {
    if (!only_paths && arg == "--help") {
      out << kUsage;
      return kSuccess;
    }
    if (!only_paths && arg == "--json") {
      json = true;
    } else if (!only_paths && arg == "--") {
      only_paths = true;
    } else if (!only_paths && absl::StartsWith(arg, "-")) {
      return UsageError(err, absl::StrCat("plot: unknown option ", arg, ", want --json or --help"));
    } else if (!run_dir.empty()) {
      return UsageError(err, absl::StrCat("plot: got a second RUN_DIR \"", arg, "\", want one"));
    } else {
      run_dir = arg;
    }
  }
  if (run_dir.empty()) return UsageError(err, "plot: RUN_DIR is missing");
  if (const absl::Status status = WriteReport(run_dir); !status.ok()) {
    err << "error: " << status.message() << "\n";
    return IsBadInput(status) ? kBadInput : kFailure;
  }
  const RunFolder folder(run_dir);
  out << (json ? JsonLine({{"run_dir", folder.path()}, {"report", folder.report()}}) : folder.report()) << "\n";
  return kSuccess;
}

}  // namespace ballast
