// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ballast {

// Version of the wire protocol. Raised when an old peer would misunderstand a new one.
inline constexpr uint32_t kProtocolVersion = 1;

// Version of this build, for people.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace ballast
