// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast plot RUN_DIR [--json]`: writes the run's report.html and prints its path. args are those behind
// "plot". Returns the exit code: 0, 1 where the report cannot be written, 2 for wrong arguments or a
// folder that holds no run; the last line on err says why.
int PlotCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
