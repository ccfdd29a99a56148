// SPDX-License-Identifier: Apache-2.0
#include "common/wire/buffer_pool.h"

#include <algorithm>
#include <cstdint>

#include "common/simd/finite_floats.h"
#include "common/simd/large_copy.h"

namespace ballast {
namespace {

// Smaller messages do not use the pool.
constexpr size_t kLeastPooledBytes = 64 << 10;

size_t RoundUp(size_t bytes) {
  return (bytes + BufferPool::kAlignment - 1) / BufferPool::kAlignment * BufferPool::kAlignment;
}

}  // namespace

BufferPool::Buffer::~Buffer() {
  if (pool_ != nullptr) pool_->GiveBack(std::move(memory_));
}

void BufferPool::Buffer::CheckFloats(size_t end) {
  // A float that has arrived in part is seen with the next part.
  const size_t partial = std::min<size_t>(end, reinterpret_cast<uintptr_t>(data_ + end) % alignof(float));
  if (end - partial <= checked_) return;
  finite_ = finite_ && AlignedFloatsAreFinite(bytes().substr(checked_, end - partial - checked_));
  checked_ = end - partial;
}

void BufferPool::Buffer::Fill(size_t at, absl::string_view from) {
  CheckFloats(at);
  const bool finite = CopyLargeAndCheck(from, data_ + at);
  const size_t end = at + from.size();
  // A float that begins ahead of `at`.
  CheckFloats(std::min(at + alignof(float) - 1, end));
  finite_ = finite_ && finite;
  checked_ = std::max(checked_, end - std::min<size_t>(end, reinterpret_cast<uintptr_t>(data_ + end) % alignof(float)));
}

bool BufferPool::Buffer::HasFiniteFloats(absl::string_view part) const {
  return finite_ && part.begin() >= bytes().begin() && part.end() <= bytes().begin() + checked_ &&
         reinterpret_cast<uintptr_t>(part.data()) % alignof(float) == 0;
}

BufferPool::Buffer BufferPool::Get(size_t size, size_t lead) {
  const size_t ahead = (kAlignment - lead % kAlignment) % kAlignment;
  const size_t bytes = ahead + size;
  Buffer buffer;
  if (bytes >= kLeastPooledBytes && bytes <= buffer_bytes_) {
    buffer.memory_ = Take();
    buffer.pool_ = this;
  } else {
    buffer.memory_.reset(static_cast<char*>(std::aligned_alloc(kAlignment, RoundUp(std::max<size_t>(bytes, 1)))));
  }
  buffer.data_ = buffer.memory_.get() + ahead;
  buffer.size_ = size;
  return buffer;
}

BufferPool::Buffer BufferPool::Copy(absl::string_view message) {
  const size_t ahead = reinterpret_cast<uintptr_t>(message.data()) % kAlignment;
  Buffer buffer = Get(message.size(), (kAlignment - ahead) % kAlignment);
  buffer.finite_ = CopyLargeAndCheck(message, buffer.data_);
  buffer.checked_ = message.size();
  return buffer;
}

BufferPool::Buffer::Memory BufferPool::Take() {
  {
    absl::MutexLock lock(&mutex_);
    if (!free_.empty()) {
      Buffer::Memory memory = std::move(free_.back());
      free_.pop_back();
      return memory;
    }
  }
  return Buffer::Memory(static_cast<char*>(std::aligned_alloc(kAlignment, RoundUp(buffer_bytes_))));
}

void BufferPool::GiveBack(Buffer::Memory memory) {
  absl::MutexLock lock(&mutex_);
  if (free_.size() < kept_) free_.push_back(std::move(memory));
}

}  // namespace ballast
