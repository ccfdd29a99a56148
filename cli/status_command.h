// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast status`: how one server is, and, where it coordinates, the job and its members.
int StatusCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
