// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast bench scaling`: measures how close N workers come to N times one worker's speed, in each mode.
int ScalingCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
