// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <thread>

namespace ballast {

// Owns a thread that receives SIGINT, SIGTERM and, if wanted, SIGQUIT as calls, in which any code may run. At most one
// per process; its destructor restores the previous signal actions. Works with threads that already exist, such as
// those that a library starts before main, because it handles the signals instead of blocking them.
class SignalWatch {
 public:
  // `on_signal` receives SIGINT and SIGTERM, and the number of these so far, from 1. `on_quit` is called for SIGQUIT;
  // without it, SIGQUIT ends the process as usual.
  explicit SignalWatch(std::function<void(int signal, int count)> on_signal, std::function<void()> on_quit = nullptr);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;

 private:
  // Number of signals that are watched.
  size_t signals() const;
  void Watch();

  const std::function<void(int, int)> on_signal_;
  const std::function<void()> on_quit_;
  std::thread thread_;
};

}  // namespace ballast
