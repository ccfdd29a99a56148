// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

namespace ballast {

// Rows of a matrix that come while the host computes with those that are there. Thread safety: none.
class ArrivingRows {
 public:
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };
  virtual ~ArrivingRows() = default;

  // Waits, and returns rows that have come, each at most once; nullopt once there is nothing left to wait for: then all
  // rows are there, unless it has failed, which its owner knows.
  virtual std::optional<Range> Next() = 0;
};

}  // namespace ballast
