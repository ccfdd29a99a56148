// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/group_save.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace ballast {

void GroupSave::Await(uint64_t change, Done done) {
  bool saved = false;
  {
    absl::MutexLock lock(&mutex_);
    saved = change <= saved_;
    if (!saved) {
      waiting_.emplace(change, std::move(done));
      if (std::exchange(running_, true)) return;
    }
  }
  if (saved) return done(absl::OkStatus());
  Start();
}

uint64_t GroupSave::saved() const {
  absl::MutexLock lock(&mutex_);
  return saved_;
}

std::vector<GroupSave::Done> GroupSave::TakeLocked(uint64_t change) {
  std::vector<Done> taken;
  const auto end = waiting_.upper_bound(change);
  for (auto waiting = waiting_.begin(); waiting != end; ++waiting) taken.push_back(std::move(waiting->second));
  waiting_.erase(waiting_.begin(), end);
  return taken;
}

void GroupSave::Start() {
  if (executor_ == nullptr) return Run();
  const absl::Status taken = executor_->Submit([this] { Run(); });
  if (taken.ok()) return;
  std::vector<Done> refused;
  {
    absl::MutexLock lock(&mutex_);
    running_ = false;
    refused = TakeLocked(std::numeric_limits<uint64_t>::max());
  }
  for (const Done& done : refused) done(taken);
}

void GroupSave::Run() {
  // Between two saves the executor may run its other tasks.
  while (SaveOnce()) {
    if (executor_ != nullptr) return Start();
  }
}

bool GroupSave::SaveOnce() {
  const Outcome outcome = save_();
  std::vector<Done> over;
  {
    absl::MutexLock lock(&mutex_);
    if (outcome.status.ok()) saved_ = std::max(saved_, outcome.change);
    over = TakeLocked(outcome.change);
  }
  for (const Done& done : over) done(outcome.status);
  settle_();
  absl::MutexLock lock(&mutex_);
  running_ = !waiting_.empty();
  return running_;
}

}  // namespace ballast
