// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast bench step`: measures samples per second of real training, alongside PyTorch.
int StepCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
