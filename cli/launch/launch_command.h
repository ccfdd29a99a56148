// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast launch`: trains a job on this machine with the given numbers of servers and workers; writes a run directory.
int LaunchCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
