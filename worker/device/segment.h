// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace ballast {

// Operations that are issued again and again, the same each time: see Device::Repeat.
struct Segment {
  using Key = std::array<uint64_t, 4>;

  // Where it is equal, equal operations are issued on the same buffers with the same numbers; only dropouts' keys
  // differ, and each dropout's layer does not.
  Key key = {};
  // Of the dropouts' keys this time.
  uint64_t seed = 0;
  uint64_t step = 0;
};

}  // namespace ballast
