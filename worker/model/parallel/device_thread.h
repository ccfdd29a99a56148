// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ballast {

// Owns a thread that runs one task at a time, to issue the operations of one device. The destructor waits for a running
// task. Thread safety: one thread calls Start and Wait.
class DeviceThread {
 public:
  DeviceThread();
  ~DeviceThread();
  DeviceThread(const DeviceThread&) = delete;

  // No task may be running.
  void Start(std::function<void()> task);
  // Waits until the task is done.
  void Wait();

 private:
  void Run();
  bool HasTask() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return task_.has_value() || ends_; }
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !task_.has_value(); }

  absl::Mutex mutex_;
  // Set until the task is done.
  std::optional<std::function<void()>> task_ ABSL_GUARDED_BY(mutex_);
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ballast
