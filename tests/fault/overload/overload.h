// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ballast {

struct OverloadOptions {
  // Path of ballast_server.
  std::string server;
  // What the server lets in, and how many times as much clients have on their way.
  uint64_t budget_mib = 32;
  uint32_t times = 10;
  // For so long.
  absl::Duration time = absl::Seconds(5);
};

struct OverloadCounts {
  // What the kernel was to kill the server at: state, budget and 128 MiB. Its memory at most; and that of its group as
  // the kernel counts it, caches included.
  uint64_t limit_bytes = 0;
  uint64_t peak_bytes = 0;
  uint64_t group_peak_bytes = 0;
  // Calls that the server refused, and those that were carried out.
  uint64_t refused = 0;
  uint64_t calls = 0;
  bool killed = false;
};

// Pushes and pulls of many times what a server lets in, the server in a hard memory limit. UNAVAILABLE where this
// process may not set one. To be called by the main thread.
absl::StatusOr<OverloadCounts> RunOverload(const OverloadOptions& options);

}  // namespace ballast
