// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/report/run_catalog.h"
#include "common/program/arguments.h"
#include "common/security/security_options.h"

namespace ballast {

// The subject of a command such as `ballast status`: a server, or a run that may have ended.
struct RunTarget {
  // Host and port of the server; empty if the run has ended.
  std::string address;
  SecurityOptions security;
  // Absent if only an address is known.
  std::optional<RunInfo> run;
};

// Access that the command needs: it decides which of a launch's tokens the command uses.
enum class RunAccess { kRead, kAdmin };

// Finds the target of a word and the flags: a run directory, an address, or, with no word, --run or the newest run.
// Reads files only. `command`: its name, for errors. UNAVAILABLE if the run's first server has not written its address
// yet; other errors are bad input.
absl::StatusOr<RunTarget> FindRunTarget(absl::string_view command, const std::optional<std::string>& word,
                                        const Arguments& arguments, RunAccess access = RunAccess::kRead);
// INVALID_ARGUMENT also if the run has ended.
absl::StatusOr<RunTarget> FindRunningTarget(absl::string_view command, const std::string& word,
                                            const Arguments& arguments, RunAccess access = RunAccess::kRead);

// Returns the error of a call to the target. If the server may have refused it for lack of a token, adds where the
// token is.
absl::Status WithTokenHint(absl::string_view command, const absl::Status& error, const RunTarget& target);

}  // namespace ballast
