// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast plot RUN_DIR [--json]`: writes the run's report.html and prints its path. Returns the exit status: 0, 1 if
// the report cannot be written, or 2 for bad arguments or a directory without a run; the last line on `err` says why.
int PlotCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
