// SPDX-License-Identifier: Apache-2.0
#include "server/tables/range/page_arena.h"

#include <sys/mman.h>

#include <algorithm>

#include "common/concurrency/named_thread.h"

namespace ballast {
namespace {

// Address space is taken in large mappings, because a process may have only some 65,000 of them.
constexpr uint64_t kMappingBytes = uint64_t{1} << 30;

constexpr uint64_t RoundUpToPage(uint64_t bytes) {
  return (bytes + PageArena::kPageBytes - 1) / PageArena::kPageBytes * PageArena::kPageBytes;
}

}  // namespace

PageArena::PageArena(uint64_t limit_bytes) : limit_bytes_(limit_bytes / kPageBytes * kPageBytes) {}

PageArena::~PageArena() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (ahead_.joinable()) ahead_.join();
  absl::MutexLock lock(&mutex_);
  for (const Mapping& mapping : mappings_) munmap(mapping.begin, mapping.bytes);
}

void* PageArena::Allocate(size_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (auto free = free_.find(bytes); free != free_.end() && !free->second.empty()) {
    void* segment = free->second.back();
    free->second.pop_back();
    segment_bytes_ += bytes;
    return segment;
  }
  // The end of a mapping, if it is less than a segment, stays unused.
  if ((mappings_.empty() || next_ + bytes > mappings_.back().bytes) && !MapLocked()) return nullptr;
  const uint64_t new_pages = RoundUpToPage(next_ + bytes) - RoundUpToPage(next_);
  if (page_bytes_ + new_pages > limit_bytes_) return nullptr;
  page_bytes_ += new_pages;
  segment_bytes_ += bytes;
  void* segment = mappings_.back().begin + next_;
  next_ += bytes;
  if (!ahead_.joinable() && WantsPageLocked()) ahead_ = NamedThread("pages ahead", [this] { RunAhead(); });
  return segment;
}

void PageArena::Free(void* segment, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  segment_bytes_ -= bytes;
  free_[bytes].push_back(segment);
}

uint64_t PageArena::page_bytes() const {
  absl::MutexLock lock(&mutex_);
  return page_bytes_;
}

size_t PageArena::ReadyLocked() const { return std::max<size_t>(ready_, RoundUpToPage(next_)); }

uint64_t PageArena::AheadLocked() const { return ReadyLocked() - RoundUpToPage(next_); }

uint64_t PageArena::ahead_bytes() const {
  absl::MutexLock lock(&mutex_);
  return AheadLocked();
}

bool PageArena::WantsPageLocked() const {
  const uint64_t wanted = std::min(page_bytes_ / kPagesPerPageAhead, kMostAheadBytes);
  const uint64_t then = AheadLocked() + kPageBytes;
  return !mappings_.empty() && then <= wanted && page_bytes_ + then <= limit_bytes_ &&
         ReadyLocked() + kPageBytes <= mappings_.back().bytes;
}

void PageArena::RunAhead() {
#if defined(MADV_POPULATE_WRITE)
  while (true) {
    Mapping mapping;
    size_t page = 0;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &PageArena::ThreadDueLocked));
      if (stopping_) return;
      mapping = mappings_.back();
      page = ReadyLocked();
    }
    // Changes no byte, so the page may come into use meanwhile. A kernel without it, or without memory, leaves all of
    // this to the first writes.
    if (madvise(mapping.begin + page, kPageBytes, MADV_POPULATE_WRITE) != 0) return;
    absl::MutexLock lock(&mutex_);
    if (mapping.begin == mappings_.back().begin) ready_ = std::max(ready_, page + kPageBytes);
  }
#endif
}

uint64_t PageArena::segment_bytes() const {
  absl::MutexLock lock(&mutex_);
  return segment_bytes_;
}

bool PageArena::MapLocked() {
  const uint64_t bytes = std::min(kMappingBytes, limit_bytes_ - page_bytes_);
  if (bytes == 0) return false;
  // One page more, so that a whole number of aligned pages fits; the kernel keeps no memory for untouched pages.
  void* address =
      mmap(nullptr, bytes + kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return false;
  char* const begin = static_cast<char*>(address);
  const size_t head = RoundUpToPage(reinterpret_cast<uintptr_t>(begin)) - reinterpret_cast<uintptr_t>(begin);
  if (head > 0) munmap(begin, head);
  if (head < kPageBytes) munmap(begin + head + bytes, kPageBytes - head);
  // Only advice: a kernel without huge pages ignores it.
  madvise(begin + head, bytes, MADV_HUGEPAGE);
  mappings_.push_back({begin + head, bytes});
  next_ = 0;
  ready_ = 0;
  return true;
}

}  // namespace ballast
