// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/report/run_catalog.h"
#include "common/program/arguments.h"
#include "common/security/security_options.h"

namespace ballast {

// The subject of `ballast status`: a server, or a run that may have ended.
struct StatusTarget {
  // Host and port of the server; empty if the run has ended.
  std::string address;
  SecurityOptions security;
  // Absent if only an address is known.
  std::optional<RunInfo> run;
};

// Finds the target of the words and flags: a run directory, an address, or the newest run if there is neither. Reads
// files only. UNAVAILABLE if the run's first server has not written its address yet; other errors are bad input.
absl::StatusOr<StatusTarget> FindStatusTarget(const Arguments& arguments);

// Returns the error of a call to the target. If the server may have refused it for lack of a token, adds where the
// token is.
absl::Status WithTokenHint(const absl::Status& error, const StatusTarget& target);

}  // namespace ballast
