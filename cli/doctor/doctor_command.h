// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast doctor`: what this machine has. Succeeds where nothing that training on the CPU needs is missing.
int DoctorCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
