// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast launch`: trains a job on this machine, with as many servers and workers as asked, and leaves a run folder.
int LaunchCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
