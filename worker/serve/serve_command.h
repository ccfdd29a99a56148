// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// Runs `ballast serve` with the words after its name: answers predictions until SIGINT or SIGTERM. Prints one line with
// the addresses to `out` once the model is ready. Returns the exit status: 0, 1 if the job cannot be followed or an
// address cannot be used, 2 for bad input.
int RunServeCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
