// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast bench step`: samples per second of real training, beside PyTorch's.
int StepCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
