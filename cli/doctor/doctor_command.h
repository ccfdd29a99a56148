// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast doctor`: reports what this machine has. Succeeds if the machine can train on the CPU.
int DoctorCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
