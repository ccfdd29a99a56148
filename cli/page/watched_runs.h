// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/page/run_watch.h"
#include "common/program/arguments.h"

namespace ballast {

// Returns watches of the runs and addresses that the words of `ballast page` or `ballast top` name; of the newest run
// under runs/ for no word. Reads little, so that a page of a long run opens at once. INVALID_ARGUMENT or NOT_FOUND for
// a word that is no run directory and no address, UNAVAILABLE if nobody answers at an address.
absl::StatusOr<std::vector<std::unique_ptr<RunWatch>>> FindRuns(const std::string& command, const Arguments& arguments,
                                                                bool record);

// The exit status for an error of FindRuns.
int ExitStatusOf(const absl::Status& error);

}  // namespace ballast
