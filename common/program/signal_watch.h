// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <thread>

namespace ballast {

// Turns SIGINT and SIGTERM into calls on a thread of its own, where anything may be done. One at a time in a process;
// its end restores what the signals did before.
// Works whatever threads there are already, such as those that a library starts before main: it handles the signals
// instead of blocking them.
class SignalWatch {
 public:
  // `on_signal` gets the signal and how many have come, from 1.
  explicit SignalWatch(std::function<void(int signal, int count)> on_signal);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;

 private:
  void Watch();

  const std::function<void(int, int)> on_signal_;
  std::thread thread_;
};

}  // namespace ballast
