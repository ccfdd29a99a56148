// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/launch/job_launch.h"

namespace ballast {

// The program that sets a directory and variables and becomes the user's program.
inline constexpr char kEnvironmentProgram[] = "/usr/bin/env";

// Returns the arguments of kEnvironmentProgram for a worker that is a user's program: its directory, its variables and
// the program. RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_ADDR are those of torchrun; BALLAST_* are
// those that the client library reads. `cores`: those of the worker's host.
std::vector<std::string> ProgramWords(const LaunchPlan& plan, int rank, int cores, const std::string& coordinator);

}  // namespace ballast
