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

// Decides when free memory that malloc keeps is returned to the kernel: once more than kSpare was unused in each of
// the last kReadings readings, or more than kSettled while the readings hardly differed, which means that no messages
// come and go. Malloc keeps the memory that a burst of calls freed; this helps while similar messages follow, but
// would otherwise last forever. Thread safety: none.
class UnusedMemory {
 public:
  static constexpr size_t kReadings = 15;
  static constexpr uint64_t kSpare = uint64_t{16} << 20;
  static constexpr uint64_t kSettled = uint64_t{1} << 20;

  // Adds a reading of the unused bytes, of which messages have freed `lately` since the last reading and will use them
  // again. True if the unused bytes should be returned now.
  bool Add(uint64_t unused, uint64_t lately = 0);
  // Reports a return, after which `unused` bytes remain that cannot be returned.
  void GivenBack(uint64_t unused);

 private:
  std::deque<uint64_t> readings_;
  // Memory counted as unused although it is in use, such as stacks: the reading after the last return.
  uint64_t floor_ = 0;
};

// Owns a thread that returns unused memory to the kernel. Thread safety: nothing to call.
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
