// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <cstddef>
#include <thread>
#include <utility>

namespace ballast {

// Starts a thread that calls `run`, and has a name for people: in top, gdb and perf, and in the table of
// `ballast bench step --threads`. The kernel takes 15 bytes of it.
template <size_t kBytes, typename Run>
std::thread NamedThread(const char (&name)[kBytes], Run run) {
  static_assert(kBytes <= 16, "a thread's name has at most 15 bytes");
  return std::thread([name = &name[0], run = std::move(run)]() mutable {
    pthread_setname_np(pthread_self(), name);
    run();
  });
}

}  // namespace ballast
