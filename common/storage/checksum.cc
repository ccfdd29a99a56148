// SPDX-License-Identifier: Apache-2.0
#include "common/storage/checksum.h"

// Header-only use, so that there is no library to link.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ballast {

struct StreamChecksum::State {
  XXH3_state_t hash;
};

uint64_t Checksum(absl::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

StreamChecksum::StreamChecksum() : state_(new State) { XXH3_64bits_reset(&state_->hash); }
StreamChecksum::~StreamChecksum() = default;

void StreamChecksum::Add(absl::string_view part) { XXH3_64bits_update(&state_->hash, part.data(), part.size()); }

uint64_t StreamChecksum::value() const { return XXH3_64bits_digest(&state_->hash); }

}  // namespace ballast
