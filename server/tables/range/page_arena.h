// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace ballast {

// Owns the memory of sparse tables, in pages of 2 MiB, and hands it out in segments. The kernel backs a page with one
// entry of the TLB if it can. Never takes more pages than its limit allows. Deliberately does not know what lies in a
// segment. Thread safety: all methods may be called from any thread.
class PageArena {
 public:
  static constexpr size_t kPageBytes = 2 << 20;
  static constexpr size_t kMaxSegmentBytes = 64 << 10;
  // Segments start at, and are multiples of, a cache line.
  static constexpr size_t kLineBytes = 64;

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
  // Bytes of segments handed out.
  uint64_t segment_bytes() const;
  uint64_t limit_bytes() const { return limit_bytes_; }

 private:
  struct Mapping {
    char* begin;
    size_t bytes;
  };

  bool MapLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t limit_bytes_;
  mutable absl::Mutex mutex_;
  // Address space; pages of the last one up to next_ are in use.
  std::vector<Mapping> mappings_ ABSL_GUARDED_BY(mutex_);
  // First byte of the last mapping that was never handed out.
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t page_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t segment_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Freed segments by size.
  absl::flat_hash_map<size_t, std::vector<void*>> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
