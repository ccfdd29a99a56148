// SPDX-License-Identifier: Apache-2.0
#include "common/concurrency/eager_wait.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "common/program/core_count.h"

namespace ballast {

bool EagerWait::ProcessorIsFree() {
  static const int cores = CoreCount();
  static const int file = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
  char text[64];
  const ssize_t size = pread(file, text, sizeof(text) - 1, 0);
  if (size <= 0) return false;
  text[size] = '\0';
  // Three averages, and then the threads that run or are ready to, of how many: "0.81 1.71 2.06 1/78 2645".
  int running = 0;
  return std::sscanf(text, "%*s %*s %*s %d/", &running) == 1 && running <= cores;
}

}  // namespace ballast
