// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast bench straggler`: measures how much one slow worker slows the others, in each mode.
int StragglerCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
