// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "cli/command/arguments.h"
#include "common/security/security_options.h"

namespace ballast {

// What a command takes that connects to a server: --tls-ca, --tls-cert, --tls-key, --token-file and --insecure.
const std::vector<FlagSpec>& SecurityFlags();

// As given, or as the environment says where a flag is not given (BALLAST_TLS_CA …), as for Ballast's other programs.
// INVALID_ARGUMENT for a flag without its value.
absl::StatusOr<SecurityOptions> ReadSecurity(const Arguments& arguments);

}  // namespace ballast
