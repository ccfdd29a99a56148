// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/types/span.h"

namespace ballast {

// `ballast keys`: makes the certificates and tokens of a job over several machines.
int KeysCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
