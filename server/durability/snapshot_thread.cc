// SPDX-License-Identifier: Apache-2.0
#include "server/durability/snapshot_thread.h"

#include <algorithm>
#include <utility>

namespace ballast {

SnapshotThread::SnapshotThread(Options options) : options_(std::move(options)), thread_([this] { Run(); }) {}

SnapshotThread::~SnapshotThread() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void SnapshotThread::Request() {
  absl::MutexLock lock(&mutex_);
  due_ = true;
}

uint64_t SnapshotThread::failures() const {
  absl::MutexLock lock(&mutex_);
  return failures_;
}

bool SnapshotThread::AwaitDue() {
  absl::MutexLock lock(&mutex_);
  const auto due = [this] {
    mutex_.AssertReaderHeld();
    return stopping_ || due_;
  };
  mutex_.Await(absl::Condition(&due));
  due_ = false;
  return !stopping_;
}

void SnapshotThread::Run() {
  absl::Duration retry = options_.first_retry;
  while (AwaitDue()) {
    const absl::Status status = options_.take();
    if (status.ok()) {
      retry = options_.first_retry;
      continue;
    }
    // A full disk may have space later; until then the log holds the only copy of the changes.
    options_.on_failure(status, retry);
    absl::MutexLock lock(&mutex_);
    ++failures_;
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), retry);
    retry = std::min(2 * retry, options_.longest_retry);
    due_ = true;
  }
}

}  // namespace ballast
