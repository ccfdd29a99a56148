// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "cli/command/command.h"
#include "cli/launch/job_launch.h"
#include "cli/launch/launch_request.h"
#include "common/run/run_folder.h"

namespace ballast {

// Merges the timelines of a run's workers and servers into the file `path`, deletes the originals, and prints the path.
// Missing timelines and other errors are only warnings on `err`, because they do not make the run a failure.
void JoinTraces(const LaunchPlan& plan, const std::string& path, std::ostream& out, std::ostream& err);

// Ends a launch whose processes have ended: writes the report, even of a run that failed early, and the joined
// timeline, and prints the results.
CommandResult ConcludeLaunch(const LaunchRequest& request, const RunFolder& folder, const LaunchResult& result,
                             std::ostream& out, std::ostream& err);

}  // namespace ballast
