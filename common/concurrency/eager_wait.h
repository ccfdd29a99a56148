// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <thread>

namespace ballast {

// Waits for one thread for something that often comes soon. To sleep and be woken takes tens of microseconds, and on a
// machine whose processors halt meanwhile, several times that for a call through three threads. So as long as waits are
// not much longer, the thread looks for what it waits for before it sleeps: for a moment in any case, and longer only
// while no other thread lacks the processor. In between it lets others run: the thread that it waits for may have been
// woken on this processor, where it stays though another one is idle. Thread safety: one thread at a time.
class EagerWait {
 public:
  // Returns whether no more threads run or are ready to run on this machine than this process has cores; false if that
  // is not known.
  static bool ProcessorIsFree();

  // `processor_is_free`: whether looking takes the processor from nobody.
  explicit EagerWait(bool (*processor_is_free)() = &ProcessorIsFree) : processor_is_free_(processor_is_free) {}

  // Calls `look` until it returns true, though not for long, and not at all if the last wait was long; then, if it has
  // not, `sleep`, which waits.
  template <typename Look, typename Sleep>
  void Wait(const Look& look, const Sleep& sleep) {
    const Clock::time_point begun = Clock::now();
    if (!comes_soon_ || !LookFrom(begun, look)) sleep();
    comes_soon_ = Clock::now() - begun < kShort;
  }

 private:
  using Clock = std::chrono::steady_clock;
  // The longest time without sleep, and how often it asks for a processor.
  static constexpr std::chrono::microseconds kLongLook{200};
  static constexpr std::chrono::microseconds kLook{7};
  // It sleeps after so many answers that none is free: the thread whose message it waits for may run for a moment.
  static constexpr int kMostLacking = 3;
  // A wait of that length with a sleep in it could have been one of kLongLook without.
  static constexpr std::chrono::microseconds kShort{300};

  template <typename Look>
  bool LookFrom(Clock::time_point begun, const Look& look) {
    int lacking = 0;
    for (Clock::time_point end = begun + kLook; end <= begun + kLongLook; end += kLook) {
      if (LookUntil(end, look)) return true;
      std::this_thread::yield();
      lacking = processor_is_free_() ? 0 : lacking + 1;
      if (lacking == kMostLacking) return false;
    }
    return false;
  }

  template <typename Look>
  static bool LookUntil(Clock::time_point end, const Look& look) {
    do {
      if (look()) return true;
    } while (Clock::now() < end);
    return false;
  }

  bool (*const processor_is_free_)();
  bool comes_soon_ = false;
};

}  // namespace ballast
