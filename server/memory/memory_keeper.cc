// SPDX-License-Identifier: Apache-2.0
#include "server/memory/memory_keeper.h"

#include <algorithm>

#include "common/concurrency/named_thread.h"
#include "common/program/this_process.h"
#include "common/wire/buffer_pool.h"

namespace ballast {

bool UnusedMemory::Add(uint64_t unused, uint64_t lately) {
  readings_.push_back(unused - std::min(unused, lately));
  if (readings_.size() > kReadings) readings_.pop_front();
  if (readings_.size() < kReadings) return false;
  const auto [least, most] = std::minmax_element(readings_.begin(), readings_.end());
  return *least > floor_ + (*most - *least < kSettled ? kSettled : kSpare);
}

void UnusedMemory::GivenBack(uint64_t unused) {
  readings_.clear();
  floor_ = unused;
}

MemoryKeeper::MemoryKeeper(absl::Duration period)
    : period_(period), thread_(NamedThread("memory keeper", [this] { Run(); })) {}

MemoryKeeper::~MemoryKeeper() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void MemoryKeeper::Run() {
  UnusedMemory unused;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), period_)) return;
    }
    if (!unused.Add(UnusedResidentBytes(), BufferPool::TakeFreedBytes())) continue;
    ReturnFreedMemory();
    unused.GivenBack(UnusedResidentBytes());
  }
}

}  // namespace ballast
