// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace ballast {

// Returns whether none of the `count` floats is NaN or infinite. They need not be aligned.
bool AreFinite(const char* floats, size_t count);

}  // namespace ballast
