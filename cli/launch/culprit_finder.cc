// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/culprit_finder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cli/command/command.h"

namespace ballast {

std::optional<int> CulpritFinder::Accuse(const v1::JobFailure& failure, absl::Span<const uint64_t> process_ids) {
  if (!failure.has_member()) return std::nullopt;
  // The system may have assigned the id of an ended process again: the newest process has it now.
  for (size_t process = 0; process < process_ids.size(); ++process) {
    if (process_ids[process] == failure.process()) accused_ = static_cast<int>(process);
  }
  return accused_;
}

int CulpritFinder::Culprit() const {
  // Workers that exit because the coordinator reported a failure may exit before the process that failed.
  const bool accused =
      accused_.has_value() && std::find(failures_.begin(), failures_.end(), *accused_) != failures_.end();
  return accused ? *accused_ : failures_[0];
}

FailureReport ReportFailure(const FailedProcess& culprit) {
  FailureReport report;
  // These exit statuses tell the user what to do.
  const bool pass_on =
      !culprit.end.signaled && (culprit.end.number == kExitBadInput || culprit.end.number == kExitTemporary);
  report.exit_status = pass_on ? culprit.end.number : kExitFailure;
  report.error = absl::StrCat(culprit.name, " (process ", culprit.process_id, ") ", culprit.end.ToString(),
                              culprit.end.ok() ? " before the job was done" : "");
  if (!culprit.last_error.empty()) absl::StrAppend(&report.error, ": ", culprit.last_error);
  report.lines.push_back(absl::StrCat("last lines of ", culprit.name, " (full log: ", culprit.log_path, "):"));
  const std::string error_line = absl::StrCat("error: ", culprit.last_error);
  for (const std::string& line : culprit.last_lines) {
    // The report's error has that one.
    if (culprit.last_error.empty() || line != error_line) report.lines.push_back(absl::StrCat("  ", line));
  }
  if (report.lines.size() == 1) report.lines[0] = absl::StrCat("full log of ", culprit.name, ": ", culprit.log_path);
  return report;
}

}  // namespace ballast
