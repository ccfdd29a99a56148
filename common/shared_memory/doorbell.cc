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
  if (waits_.load(std::memory_order_seq_cst) != 0) Futex(rings_, FUTEX_WAKE, INT_MAX, nullptr);
}

void Doorbell::Wait(uint32_t seen, absl::Duration timeout) {
  waits_.store(1, std::memory_order_seq_cst);
  if (rings() == seen) {
    const timespec time = absl::ToTimespec(std::max(timeout, absl::ZeroDuration()));
    // Returns at once if the number differs by now.
    Futex(rings_, FUTEX_WAIT, seen, &time);
  }
  waits_.store(0, std::memory_order_seq_cst);
}

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
