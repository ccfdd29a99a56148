// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/job.pb.h"
#include "cli/command/command.h"

namespace ballast {

// `ballast launch`: trains a job on this machine with the given numbers of servers and workers; writes a run directory.
RunCommand LaunchCommand;
FlagTable LaunchFlags;

// Returns the job that `ballast launch` would train with these words, or the error with which it would refuse them.
// Reads files, but writes none.
absl::StatusOr<v1::Job> CheckLaunch(absl::Span<const std::string> args);

}  // namespace ballast
