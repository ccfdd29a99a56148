// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast bench apply`: measures the optimizers' kernels against a loop that only reads and writes the same arrays.
int ApplyCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
