// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ballast {

// Decides when memory that malloc keeps for the next messages goes back to the kernel: once more of it than kSpare has
// been without use in each of the last kReadings readings, or more than kSettled while they hardly differed, because
// then nothing comes and goes. Malloc keeps what a burst of calls has freed, which is right while messages of that size
// come and go, and would be for ever otherwise. Thread safety: none.
class UnusedMemory {
 public:
  static constexpr size_t kReadings = 5;
  static constexpr uint64_t kSpare = uint64_t{16} << 20;
  static constexpr uint64_t kSettled = uint64_t{1} << 20;

  // A reading of the bytes without use. True if they should be given back now.
  bool Add(uint64_t unused);
  // They were; `unused` are left, which cannot be given back.
  void GivenBack(uint64_t unused);

 private:
  std::deque<uint64_t> readings_;
  // Memory that is counted as unused and is not, such as stacks; the smallest reading after a return.
  uint64_t floor_ = 0;
};

// Gives memory without use back to the kernel, on a thread of its own. Thread safety: nothing to call.
class MemoryKeeper {
 public:
  explicit MemoryKeeper(absl::Duration period = absl::Seconds(1));
  ~MemoryKeeper();
  MemoryKeeper(const MemoryKeeper&) = delete;

 private:
  void Run();

  const absl::Duration period_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ballast
