// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace ballast {

// Owns the memory of sparse tables, in pages of 2 MiB, and hands it out in segments. The kernel backs a page with one
// entry of the TLB if it can. Never takes more pages than its limit allows. A large arena has a thread that lets the
// kernel provide the next pages before they are needed, because it zeroes them first, which takes longer than a push
// should. Deliberately does not know what lies in a segment. Thread safety: all methods may be called from any thread.
class PageArena {
 public:
  static constexpr size_t kPageBytes = 2 << 20;
  static constexpr size_t kMaxSegmentBytes = 64 << 10;
  // Segments start at, and are multiples of, a cache line.
  static constexpr size_t kLineBytes = 64;
  // Pages that are ready before they are needed: one for this many in use, and not more than kMostAheadBytes.
  static constexpr uint64_t kPagesPerPageAhead = 16;
  static constexpr uint64_t kMostAheadBytes = 32 << 20;

  // `limit_bytes` is rounded down to whole pages.
  explicit PageArena(uint64_t limit_bytes);
  // All segments must have been freed or be unused from now on.
  ~PageArena();
  PageArena(const PageArena&) = delete;
  PageArena& operator=(const PageArena&) = delete;

  // Returns `bytes` of memory with undefined contents, or nullptr at the limit or if the kernel has no more. `bytes`: a
  // positive multiple of kLineBytes, at most kMaxSegmentBytes.
  void* Allocate(size_t bytes);

  // Takes back a segment of that size, for the next one of the same size. Its page stays with the arena.
  void Free(void* segment, size_t bytes);

  // Bytes of pages in use, which the limit bounds.
  uint64_t page_bytes() const;
  // Bytes of pages that are ready, but not in use.
  uint64_t ahead_bytes() const;
  // Bytes of segments handed out.
  uint64_t segment_bytes() const;
  uint64_t limit_bytes() const { return limit_bytes_; }

 private:
  struct Mapping {
    char* begin;
    size_t bytes;
  };

  bool MapLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Pages of the last mapping up to there are in use or ready.
  size_t ReadyLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  uint64_t AheadLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool WantsPageLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool ThreadDueLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || WantsPageLocked(); }
  // Makes pages ready until the arena is destroyed.
  void RunAhead();

  const uint64_t limit_bytes_;
  mutable absl::Mutex mutex_;
  // Address space; pages of the last one up to next_ are in use.
  std::vector<Mapping> mappings_ ABSL_GUARDED_BY(mutex_);
  // First byte of the last mapping that was never handed out.
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  // See ReadyLocked; less if pages came into use sooner.
  size_t ready_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t page_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t segment_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Freed segments by size.
  absl::flat_hash_map<size_t, std::vector<void*>> free_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Not started while the arena is small.
  std::thread ahead_;
};

}  // namespace ballast
