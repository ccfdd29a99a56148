// SPDX-License-Identifier: Apache-2.0
#include "worker/model/parallel/replica_step.h"

#include <algorithm>
#include <limits>
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

class ReplicaStep::Leader : public StepHooks {
 public:
  explicit Leader(ReplicaStep* step) : step_(*step) {}

  absl::Status BeforeForward(size_t group) override {
    if (absl::Status status = step_.hooks_->BeforeForward(group); !status.ok()) return Fail(status);
    absl::MutexLock lock(&step_.mutex_);
    step_.forward_ = group + 1;
    return step_.failure_;
  }

  absl::Status AfterForward(const BatchResult& result) override {
    BatchResult sum = result;
    absl::Status status = step_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_.mutex_) {
      return std::all_of(step_.progress_.begin() + 1, step_.progress_.end(),
                         [](const Progress& progress) { return progress.result.has_value(); });
    });
    if (!status.ok()) return status;
    {
      absl::MutexLock lock(&step_.mutex_);
      for (size_t i = 1; i < step_.progress_.size(); ++i) sum += *step_.progress_[i].result;
    }
    status = step_.hooks_->AfterForward(sum);
    return status.ok() ? status : Fail(status);
  }

  absl::Status GradientReady(size_t group) override {
    absl::Status status = step_.Await([this, group]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_.mutex_) {
      return std::all_of(step_.progress_.begin() + 1, step_.progress_.end(),
                         [group](const Progress& progress) { return progress.backward <= group; });
    });
    if (!status.ok()) return status;
    status = step_.sum_(group);
    if (status.ok()) status = step_.hooks_->GradientReady(group);
    return status.ok() ? status : Fail(status);
  }

 private:
  // Records a hook's failure before the replica can add to its message.
  absl::Status Fail(const absl::Status& status) {
    step_.Fail(status);
    return status;
  }

  ReplicaStep& step_;
};

class ReplicaStep::Follower : public StepHooks {
 public:
  Follower(ReplicaStep* step, size_t replica) : step_(*step), replica_(replica) {}

  absl::Status BeforeForward(size_t group) override {
    return step_.Await([this, group]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_.mutex_) { return step_.forward_ > group; });
  }

  absl::Status AfterForward(const BatchResult& result) override {
    absl::MutexLock lock(&step_.mutex_);
    step_.progress_[replica_].result = result;
    return step_.failure_;
  }

  absl::Status GradientReady(size_t group) override {
    absl::MutexLock lock(&step_.mutex_);
    step_.progress_[replica_].backward = group;
    return step_.failure_;
  }

 private:
  ReplicaStep& step_;
  const size_t replica_;
};

ReplicaStep::ReplicaStep(size_t replicas, StepHooks* hooks, Sum sum)
    : hooks_(hooks), sum_(std::move(sum)), progress_(replicas, {.backward = std::numeric_limits<size_t>::max()}) {
  replicas_.push_back(std::make_unique<Leader>(this));
  for (size_t i = 1; i < replicas; ++i) replicas_.push_back(std::make_unique<Follower>(this, i));
}

absl::Status ReplicaStep::Await(const std::function<bool()>& condition) {
  absl::MutexLock lock(&mutex_);
  const auto ends = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !failure_.ok() || condition(); };
  mutex_.Await(absl::Condition(&ends));
  return failure_;
}

void ReplicaStep::Fail(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  failure_.Update(status);
}

absl::Status ReplicaStep::status() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

}  // namespace ballast
