// SPDX-License-Identifier: Apache-2.0
#include "common/this_process.h"

#include <malloc.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace ballast {

void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  // Each arena keeps what was freed in it: with one for each thread that would be many times what is in use.
  mallopt(M_ARENA_MAX, 2);
}

void SkipLockOrderChecks() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

std::string DescribeThisProcess() {
  char host[256] = "unknown host";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat(host, ", process ", getpid());
}

}  // namespace ballast
