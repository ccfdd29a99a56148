// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace ballast {

// Chain of the deltas of one range after another delta: docs/protocol/wire_protocol.md, "Watching rows". `before`: the
// chain so far; 0 for a delta that replaces the range. The others are the fields of ballast.v1.RowDelta.
uint64_t NextRowChain(uint64_t before, absl::string_view ids, absl::string_view evicted, absl::string_view payload);

}  // namespace ballast
