// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace ballast {

// What threads have done since they started.
struct ThreadTimes {
  int threads = 0;
  // Time on a processor.
  double running_seconds = 0;
  // Time in which they could have run, but no processor was free.
  double ready_seconds = 0;
  // How often they slept, to wait for something.
  double sleeps = 0;

  ThreadTimes& operator+=(const ThreadTimes& other);
  // What was done since `earlier`.
  ThreadTimes Since(const ThreadTimes& earlier) const;
};

// By process ("server", "worker") and name of the threads, which common/concurrency/named_thread.h gives.
using ThreadTable = std::map<std::pair<std::string, std::string>, ThreadTimes>;

// Adds what Linux has counted of a process's threads. NOT_FOUND if the process has ended, or the kernel does not count
// (CONFIG_SCHED_INFO).
absl::Status AddThreads(const std::string& process, pid_t pid, ThreadTable& table);

}  // namespace ballast
