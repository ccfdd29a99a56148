// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ballast {

// A thread that runs one task after the other: it issues the operations of one device. Its end waits for the task under
// way.
// Thread safety: one thread starts and waits.
class DeviceThread {
 public:
  DeviceThread();
  ~DeviceThread();
  DeviceThread(const DeviceThread&) = delete;

  // Only when no task is under way.
  void Start(std::function<void()> task);
  // Until the task is done.
  void Wait();

 private:
  void Run();
  bool HasTask() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return task_.has_value() || ends_; }
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !task_.has_value(); }

  absl::Mutex mutex_;
  // Until it is done.
  std::optional<std::function<void()>> task_ ABSL_GUARDED_BY(mutex_);
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ballast
