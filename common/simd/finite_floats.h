// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace ballast {

// Returns whether none of the `count` floats is NaN or infinite. They need not be aligned.
bool AreFinite(const char* floats, size_t count);

// Same for the floats at aligned addresses that lie in `bytes` as a whole.
bool AlignedFloatsAreFinite(absl::string_view bytes);

}  // namespace ballast
