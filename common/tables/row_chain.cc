// SPDX-License-Identifier: Apache-2.0
#include "common/tables/row_chain.h"

#include <bit>

#include "common/storage/checksum.h"

namespace ballast {

static_assert(std::endian::native == std::endian::little, "the chain before is hashed as it is in memory");

uint64_t NextRowChain(uint64_t before, absl::string_view ids, absl::string_view evicted, absl::string_view payload) {
  StreamChecksum checksum;
  checksum.Add({reinterpret_cast<const char*>(&before), sizeof(before)});
  for (absl::string_view part : {ids, evicted, payload}) checksum.Add(part);
  return checksum.value();
}

}  // namespace ballast
