// SPDX-License-Identifier: Apache-2.0
#include "common/program/this_process.h"

#include <malloc.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace ballast {
namespace {

// On a machine the kernel's own processes have the lower ids, and a container's processes begin with 1.
constexpr int64_t kFirstUsualProcess = 100;

}  // namespace

void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  // Each arena keeps its freed memory: with one arena per thread that would be a multiple of the memory in use.
  mallopt(M_ARENA_MAX, 2);
}

uint64_t UnusedResidentBytes() {
  uint64_t size = 0, resident = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> size >> resident >> shared;
  const uint64_t own = (resident - shared) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const struct mallinfo2 heap = mallinfo2();
  const uint64_t allocated = heap.uordblks + heap.hblkhd;
  return own > allocated ? own - allocated : 0;
}

void ReturnFreedMemory() { malloc_trim(0); }

void SkipLockOrderChecks() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

std::string DescribeProcess(absl::string_view host, int64_t process, absl::Time since) {
  const std::string name = absl::StrCat(host, ", process ", process);
  if (process >= kFirstUsualProcess) return name;
  return absl::StrCat(name, " since ", absl::FormatTime("%H:%M:%E3S", since, absl::UTCTimeZone()));
}

std::string DescribeThisProcess() {
  static const absl::Time since = absl::Now();
  char host[256] = "unknown host";
  gethostname(host, sizeof(host) - 1);
  return DescribeProcess(host, getpid(), since);
}

}  // namespace ballast
