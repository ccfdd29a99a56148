// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "common/concurrency/eager_wait.h"

namespace ballast {

// An event count in shared memory: one process rings, a thread of another waits. Ringing calls the kernel only if
// somebody waits. The other process may write anything into it; the worst effect is that a wait ends too early, or only
// with its timeout. Thread safety: any thread may ring, and any may wait.
class Doorbell {
 public:
  // Returns the number of rings, which wraps around. Take it before looking for what the rings announce.
  uint32_t rings() const { return rings_.load(std::memory_order_seq_cst); }

  void Ring();

  // Returns once the number of rings differs from `seen`, or after the timeout, or for no reason. Sleeps.
  void Wait(uint32_t seen, absl::Duration timeout);

 private:
  friend class ParkedSleepers;

  std::atomic<uint32_t> rings_{0};
  // Threads that wait.
  std::atomic<uint32_t> waits_{0};
};
static_assert(sizeof(Doorbell) == 8 && std::atomic<uint32_t>::is_always_lock_free);

// Owns the place where threads that wait for a doorbell sleep while another thread waits for it in their stead: rings
// then wake only that one. Moving them there and back wakes none of them. Thread safety: all methods may be called from
// any thread; after a Park and an Unpark at the same time, those that sleep may be in either place.
class ParkedSleepers {
 public:
  // `bell` outlives this.
  explicit ParkedSleepers(Doorbell& bell) : bell_(bell) {}

  // Moves the threads that sleep in Doorbell::Wait. May move none; rings then still wake them.
  void Park();
  // Returns them to the bell, and wakes all there if the number of rings differs from `seen`.
  void Unpark(uint32_t seen);

  // Returns the number of Unpark calls, which wraps around.
  uint32_t unparked() const { return unparked_.load(std::memory_order_seq_cst); }
  // Waits like one that Park has moved, unless the number of Unpark calls differs from `unparked`.
  void Wait(uint32_t unparked, absl::Duration timeout);
  // Ends the waits of those that are parked.
  void Wake();

 private:
  Doorbell& bell_;
  std::atomic<uint32_t> unparked_{0};
};

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
