// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "cli/command/arguments.h"
#include "common/security/security_options.h"

namespace ballast {

// Flags of a command that connects to a server: --tls-ca, --tls-cert, --tls-key, --token-file and --insecure.
const std::vector<FlagSpec>& SecurityFlags();

// Reads the security flags. The environment variable of a flag (BALLAST_TLS_CA …) applies if the flag is absent, as in
// Ballast's other programs. INVALID_ARGUMENT if a flag has an empty value.
absl::StatusOr<SecurityOptions> ReadSecurity(const Arguments& arguments);

}  // namespace ballast
