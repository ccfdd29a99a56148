// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "common/concurrency/eager_wait.h"

namespace ballast {

// An event count in shared memory: one process rings, a thread of another waits. Ringing calls the kernel only if
// somebody waits. The other process may write anything into it; the worst effect is that a wait ends too early, or only
// with its timeout. Thread safety: any thread may ring; one thread at a time waits.
class Doorbell {
 public:
  // Returns the number of rings, which wraps around. Take it before looking for what the rings announce.
  uint32_t rings() const { return rings_.load(std::memory_order_seq_cst); }

  void Ring();

  // Returns once the number of rings differs from `seen`, or after the timeout, or for no reason. Sleeps.
  void Wait(uint32_t seen, absl::Duration timeout);

 private:
  std::atomic<uint32_t> rings_{0};
  // 1 while the thread waits.
  std::atomic<uint32_t> waits_{0};
};
static_assert(sizeof(Doorbell) == 8 && std::atomic<uint32_t>::is_always_lock_free);

// Waits for a doorbell for one thread, without sleep as long as rings come soon. Thread safety: one thread at a time.
class DoorbellListener {
 public:
  // `bell` outlives this.
  explicit DoorbellListener(Doorbell& bell) : bell_(bell) {}

  // Like Doorbell::Wait.
  void Wait(uint32_t seen, absl::Duration timeout);

 private:
  Doorbell& bell_;
  EagerWait wait_;
};

}  // namespace ballast
