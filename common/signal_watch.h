// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <thread>

namespace ballast {

// Turns SIGINT and SIGTERM into calls on a thread of its own, where anything may be done.
// Create it before any other thread: it blocks both signals, and threads inherit that.
class SignalWatch {
 public:
  // `on_signal` gets the signal and how many have come, from 1.
  explicit SignalWatch(std::function<void(int signal, int count)> on_signal);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;

 private:
  void Watch();

  const std::function<void(int, int)> on_signal_;
  int signals_ = -1;
  int stop_ = -1;
  std::thread thread_;
};

}  // namespace ballast
