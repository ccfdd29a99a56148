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
  // The server's limit on bytes in flight, and the multiple of it that clients have in flight.
  uint64_t budget_mib = 32;
  uint32_t times = 10;
  absl::Duration time = absl::Seconds(5);
};

struct OverloadCounts {
  // The kernel's limit for the server: state, budget and 128 MiB. Peak memory of the server; and of its group as the
  // kernel counts it, caches included.
  uint64_t limit_bytes = 0;
  uint64_t peak_bytes = 0;
  uint64_t group_peak_bytes = 0;
  // Calls that the server refused, and those that succeeded.
  uint64_t refused = 0;
  uint64_t calls = 0;
  bool killed = false;
};

// Pushes and pulls many times as much as a server admits, under a hard memory limit. UNAVAILABLE if this process may
// not set one. To be called by the main thread.
absl::StatusOr<OverloadCounts> RunOverload(const OverloadOptions& options);

}  // namespace ballast
