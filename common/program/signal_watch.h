// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <thread>

namespace ballast {

// Owns a thread that receives SIGINT and SIGTERM as calls, in which any code may run. At most one per process; its
// destructor restores the previous signal actions. Works with threads that already exist, such as those that a
// library starts before main, because it handles the signals instead of blocking them.
class SignalWatch {
 public:
  // `on_signal` receives the signal and the number of signals so far, from 1.
  explicit SignalWatch(std::function<void(int signal, int count)> on_signal);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;

 private:
  void Watch();

  const std::function<void(int, int)> on_signal_;
  std::thread thread_;
};

}  // namespace ballast
