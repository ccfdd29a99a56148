// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "common/wire/buffer_pool.h"
#include "server/shard/push_window.h"

namespace ballast {

// Foretells how long one client's next gradients will stay where they were received. At a barrier, the first gradient
// of a step waits for the others, and the last one is applied at once. A client that was ahead of the others with one
// message mostly still is with the next. Thread safety: all methods may be called from any thread.
class StayForecast {
 public:
  void Took(const PushOutcome& push) { waits_ = push.buffered > push.applied + push.dropped; }
  BufferPool::Stay next() const { return waits_ ? BufferPool::Stay::kLong : BufferPool::Stay::kShort; }

 private:
  std::atomic<bool> waits_{false};
};

}  // namespace ballast
