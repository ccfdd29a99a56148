// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ballast {

// Returns whether `name` is a command of this room: "predict" or "eval".
bool IsModelCommand(absl::string_view name);

// Runs `ballast predict` or `ballast eval` with the words after its name. Predictions go to standard output or a file,
// the results of eval to `out`, errors to `err`. Returns the exit status: 0, 1 if writing or the device failed, 2 for
// bad input.
int RunModelCommand(const std::string& name, absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
