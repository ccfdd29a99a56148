// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace ballast {

// Copies of memory that may be large; source and destination do not overlap.

// Copies of that many bytes or more are written past the caches. So much does not stay in them until it is used again,
// and an ordinary store would first read what it overwrites.
inline constexpr size_t kStreamedBytes = size_t{1} << 20;

// Where the destination of a copy is: one in the caches is written there, whatever its size.
enum class CopyTo { kMemory, kCaches };

void CopyLarge(absl::string_view from, char* to);

// Same, and returns whether all floats at aligned addresses of the copy are finite. Reads each byte once, so that the
// answer holds for the copy, whatever another process does to the source.
bool CopyLargeAndCheck(absl::string_view from, char* to, CopyTo where = CopyTo::kMemory);

}  // namespace ballast
