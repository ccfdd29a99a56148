// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast status`: prints the status of one server and, if it hosts the coordinator, of the job and its members.
int StatusCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
