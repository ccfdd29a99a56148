// SPDX-License-Identifier: Apache-2.0
#include "common/shared_memory/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace ballast {
namespace {

// Reading the clock takes longer than reading the bell.
constexpr int kLooksPerTime = 16;

long Futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

void WakeSleepers(std::atomic<uint32_t>& word) { Futex(word, FUTEX_WAKE, INT_MAX, nullptr); }

// Sleeps unless the word has another value by now.
void Sleep(std::atomic<uint32_t>& word, uint32_t value, absl::Duration timeout) {
  const timespec time = absl::ToTimespec(std::max(timeout, absl::ZeroDuration()));
  Futex(word, FUTEX_WAIT, value, &time);
}

// Lets those that sleep until `from` is woken do so until `to` is. Returns whether none is left.
bool MoveSleepers(std::atomic<uint32_t>& from, std::atomic<uint32_t>& to) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&from), FUTEX_CMP_REQUEUE, 0, long{INT_MAX},
                 reinterpret_cast<uint32_t*>(&to), from.load(std::memory_order_seq_cst)) >= 0;
}

// Leaves the core to its other thread for a moment.
void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Doorbell::Ring() {
  // Both processes use one total order, so either this sees that the other waits, or the other sees this ring.
  rings_.fetch_add(1, std::memory_order_seq_cst);
  if (waits_.load(std::memory_order_seq_cst) != 0) WakeSleepers(rings_);
}

void Doorbell::Wait(uint32_t seen, absl::Duration timeout) {
  waits_.fetch_add(1, std::memory_order_seq_cst);
  if (rings() == seen) Sleep(rings_, seen, timeout);
  waits_.fetch_sub(1, std::memory_order_seq_cst);
}

void ParkedSleepers::Park() { MoveSleepers(bell_.rings_, unparked_); }

void ParkedSleepers::Unpark(uint32_t seen) {
  unparked_.fetch_add(1, std::memory_order_seq_cst);
  // Those that cannot be moved must look for themselves.
  if (!MoveSleepers(unparked_, bell_.rings_)) WakeSleepers(unparked_);
  if (bell_.rings() != seen) WakeSleepers(bell_.rings_);
}

void ParkedSleepers::Wait(uint32_t unparked, absl::Duration timeout) {
  // Unpark lets it sleep at the bell, whose ringers must know.
  bell_.waits_.fetch_add(1, std::memory_order_seq_cst);
  Sleep(unparked_, unparked, timeout);
  bell_.waits_.fetch_sub(1, std::memory_order_seq_cst);
}

void ParkedSleepers::Wake() { WakeSleepers(unparked_); }

void DoorbellListener::Wait(uint32_t seen, absl::Duration timeout) {
  const auto look = [&] {
    for (int i = 0; i < kLooksPerTime; ++i) {
      if (bell_.rings() != seen) return true;
      Pause();
    }
    return false;
  };
  wait_.Wait(look, [&] { bell_.Wait(seen, timeout); });
}

}  // namespace ballast
