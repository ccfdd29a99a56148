// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace ballast {

// A group of operations that is issued repeatedly: see Device::Repeat.
struct Segment {
  using Key = std::array<uint64_t, 4>;

  // Segments with equal keys issue equal operations on the same buffers with the same numbers. Only the dropouts'
  // seed and step differ; each dropout's layer is the same.
  Key key = {};
  // Seed and step of the dropouts' keys for this repetition.
  uint64_t seed = 0;
  uint64_t step = 0;
  // Name in a timeline; valid while the segment is issued.
  absl::string_view name = {};
};

}  // namespace ballast
