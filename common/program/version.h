// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ballast {

// Of the wire protocol. Raised when an old peer would misunderstand a new one.
inline constexpr uint32_t kProtocolVersion = 1;

// Of this build, for people.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace ballast
