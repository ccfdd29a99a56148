// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "absl/status/status.h"
#include "common/status/error_reason.h"

namespace ballast {

// Records whether this process serves its shard: with standbys, only one process per shard does, once it knows its
// role. Thread safety: all methods may be called from any thread.
class ServingGate {
 public:
  explicit ServingGate(bool open) : open_(open) {}

  void Open() { open_.store(true, std::memory_order_release); }
  void Close() { open_.store(false, std::memory_order_release); }

  // UNAVAILABLE while the gate is closed; callers should retry at the address in the shard map.
  absl::Status Check() const {
    if (open_.load(std::memory_order_acquire)) return absl::OkStatus();
    return WithReason(
        v1::ERROR_REASON_NOT_SERVING,
        absl::UnavailableError("this process does not hold the shard: it is a standby, or has not joined yet"));
  }

 private:
  std::atomic<bool> open_;
};

}  // namespace ballast
