// SPDX-License-Identifier: Apache-2.0
#pragma once

// Header-only use, so that there is no library to link.
#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

#include <bit>
#include <cstdint>

#include "absl/strings/string_view.h"

// Ids of the rows that an embedding table has for the categories of a field. Saved models depend on them: they never
// change.
namespace ballast {

// Returns the id of a text: XXH3-64 of its bytes, seeded with the number of the field, so that equal texts in two
// fields have different rows.
inline uint64_t CategoryRowId(absl::string_view text, uint64_t field) {
  return XXH3_64bits_withSeed(text.data(), text.size(), field);
}

// Returns the id of a whole number: XXH3-64 of its 8 bytes, little-endian, seeded like that of a text.
inline uint64_t CategoryRowId(uint64_t number, uint64_t field) {
  static_assert(std::endian::native == std::endian::little, "bytes of numbers are hashed as they are in memory");
  return XXH3_64bits_withSeed(&number, sizeof(number), field);
}

}  // namespace ballast
