// SPDX-License-Identifier: Apache-2.0
#include "worker/model/parallel/device_thread.h"

#include <utility>

namespace ballast {

DeviceThread::DeviceThread() : thread_([this] { Run(); }) {}

DeviceThread::~DeviceThread() {
  {
    absl::MutexLock lock(&mutex_);
    ends_ = true;
  }
  thread_.join();
}

void DeviceThread::Start(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  task_ = std::move(task);
}

void DeviceThread::Wait() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &DeviceThread::IsIdle));
}

void DeviceThread::Run() {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &DeviceThread::HasTask));
      if (!task_.has_value()) return;
      task = *task_;
    }
    task();
    absl::MutexLock lock(&mutex_);
    task_.reset();
  }
}

}  // namespace ballast
