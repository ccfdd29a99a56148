// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast keys`: creates the certificates and tokens for a job on several machines.
int KeysCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
