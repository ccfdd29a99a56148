// SPDX-License-Identifier: Apache-2.0
#include "common/wire/buffer_pool.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <iterator>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/simd/finite_floats.h"
#include "common/simd/large_copy.h"

namespace ballast {
namespace {

// Smaller messages do not use the pool.
constexpr size_t kLeastPooledBytes = 64 << 10;

constexpr size_t kPage = 4096;

// Of all pools, since TakeFreedBytes.
std::atomic<uint64_t> freed_bytes{0};

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

char* Allocate(size_t bytes) { return static_cast<char*>(std::aligned_alloc(BufferPool::kAlignment, bytes)); }

}  // namespace

// Owns the memory that is free. Thread safety: all methods may be called from any thread.
class BufferPool::Store {
 public:
  explicit Store(size_t kept_bytes) : kept_bytes_(kept_bytes) {}

  Memory Take(size_t bytes, Stay stay) {
    Memory taken = {nullptr, bytes};
    {
      absl::MutexLock lock(&mutex_);
      const auto fits = [bytes](const Memory& one) {
        return one.bytes >= bytes && one.bytes - bytes <= bytes / kWaste;
      };
      auto found = free_.end();
      if (stay == Stay::kLong) {
        found = std::find_if(free_.begin(), free_.end(), fits);
      } else if (const auto last = std::find_if(free_.rbegin(), free_.rend(), fits); last != free_.rend()) {
        found = std::next(last).base();
      }
      if (found != free_.end()) {
        taken = std::move(*found);
        free_.erase(found);
        free_bytes_ -= taken.bytes;
        taken.in_caches = taken_bytes_ - taken.taken_at <= kCachedBytes;
      }
      taken_bytes_ += taken.bytes;
      taken.taken_at = taken_bytes_;
    }
    if (taken.start == nullptr) taken.start.reset(Allocate(bytes));
    return taken;
  }

  void GiveBack(Memory memory) {
    // Freed after the lock.
    std::vector<Memory> rest;
    absl::MutexLock lock(&mutex_);
    free_bytes_ += memory.bytes;
    const auto earlier = std::find_if(free_.rbegin(), free_.rend(),
                                      [&memory](const Memory& one) { return one.taken_at < memory.taken_at; });
    free_.insert(earlier.base(), std::move(memory));
    while (free_bytes_ > kept_bytes_) {
      free_bytes_ -= free_.front().bytes;
      freed_bytes.fetch_add(free_.front().bytes, std::memory_order_relaxed);
      rest.push_back(std::move(free_.front()));
      free_.pop_front();
    }
  }

  size_t free_bytes() const {
    absl::MutexLock lock(&mutex_);
    return free_bytes_;
  }

 private:
  const size_t kept_bytes_;
  mutable absl::Mutex mutex_;
  // In the order in which they were taken.
  std::deque<Memory> free_ ABSL_GUARDED_BY(mutex_);
  size_t free_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Bytes of all memory that was ever taken.
  uint64_t taken_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

BufferPool::Buffer::~Buffer() {
  if (store_ != nullptr) store_->GiveBack(std::move(memory_));
}

void BufferPool::Buffer::CheckFloats(size_t end) {
  // A float that has arrived in part is seen with the next part.
  const size_t partial = std::min<size_t>(end, reinterpret_cast<uintptr_t>(data_ + end) % alignof(float));
  if (end - partial <= checked_) return;
  finite_ = finite_ && AlignedFloatsAreFinite(bytes().substr(checked_, end - partial - checked_));
  checked_ = end - partial;
}

bool BufferPool::Buffer::HasFiniteFloats(absl::string_view part) const {
  return finite_ && Has(part) && part.end() <= bytes().begin() + checked_ &&
         reinterpret_cast<uintptr_t>(part.data()) % alignof(float) == 0;
}

BufferPool::BufferPool(size_t most_bytes, size_t kept_bytes)
    : most_bytes_(most_bytes), store_(std::make_shared<Store>(kept_bytes)) {}

size_t BufferPool::free_bytes() const { return store_->free_bytes(); }

uint64_t BufferPool::TakeFreedBytes() { return freed_bytes.exchange(0, std::memory_order_relaxed); }

BufferPool::Buffer BufferPool::Get(size_t size, size_t lead, Stay stay) {
  const size_t ahead = (kAlignment - lead % kAlignment) % kAlignment;
  const size_t bytes = ahead + size;
  Buffer buffer;
  if (bytes >= kLeastPooledBytes && size <= most_bytes_) {
    buffer.memory_ = store_->Take(RoundUp(bytes, kPage), stay);
    buffer.store_ = store_;
  } else {
    const size_t rounded = RoundUp(std::max<size_t>(bytes, 1), kAlignment);
    buffer.memory_ = {std::unique_ptr<char, Free>(Allocate(rounded)), rounded};
  }
  buffer.data_ = buffer.memory_.start.get() + ahead;
  buffer.size_ = size;
  return buffer;
}

BufferPool::Buffer BufferPool::Copy(absl::string_view message, Stay stay) {
  const size_t ahead = reinterpret_cast<uintptr_t>(message.data()) % kAlignment;
  Buffer buffer = Get(message.size(), (kAlignment - ahead) % kAlignment, stay);
  buffer.finite_ = CopyLargeAndCheck(message, buffer.data_, buffer.was_in_caches() ? CopyTo::kCaches : CopyTo::kMemory);
  buffer.checked_ = message.size();
  return buffer;
}

}  // namespace ballast
