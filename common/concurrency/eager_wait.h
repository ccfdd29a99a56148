// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace ballast {

// Waits for one thread for something that often comes soon. To sleep and be woken takes tens of microseconds, so as
// long as waits are shorter than that, the thread looks for what it waits for before it sleeps. Thread safety: one
// thread at a time.
class EagerWait {
 public:
  // Calls `look` until it returns true, though not for long, and not at all if the last wait was long or unless
  // `may_look`; then, if it has not, `sleep`, which waits.
  template <typename Look, typename Sleep>
  void Wait(bool may_look, const Look& look, const Sleep& sleep) {
    const Clock::time_point begun = Clock::now();
    if (!may_look || !comes_soon_ || !LookUntil(begun + kLook, look)) sleep();
    comes_soon_ = Clock::now() - begun < kShort;
  }

 private:
  using Clock = std::chrono::steady_clock;
  // The longest time without sleep.
  static constexpr std::chrono::microseconds kLook{20};
  // A wait of that length with a sleep in it would have been one of kLook without.
  static constexpr std::chrono::microseconds kShort{60};

  template <typename Look>
  static bool LookUntil(Clock::time_point end, const Look& look) {
    do {
      if (look()) return true;
    } while (Clock::now() < end);
    return false;
  }

  bool comes_soon_ = false;
};

}  // namespace ballast
