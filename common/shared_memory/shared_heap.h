// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace ballast {

// Where a heap is: v1.SharedHeap.
struct HeapDescription {
  uint64_t id = 0;
  uint32_t process = 0;
  uint32_t file = 0;
  uint64_t bytes = 0;
};

// Parts of a heap: the end of each, by its offset. No two of them touch.
using HeapParts = std::map<uint64_t, uint64_t>;

// Owns memory of this process that processes of the same user and machine can read, but not change, so that messages to
// them need no copy of what is in it. Freed memory is used again, but never returned to the
// kernel. Deliberately does not know messages, or who reads. Thread safety: all methods may be called from any thread.
class SharedHeap {
 public:
  // Smaller blocks are not worth a page of their own.
  static constexpr size_t kLeastBytes = 4096;

  // The heap of this process, as large as the machine's memory. Never destroyed.
  static SharedHeap& OfProcess();

  // Reserves addresses, but no memory yet. If the kernel refuses, the heap has no memory.
  explicit SharedHeap(uint64_t bytes);
  ~SharedHeap();
  SharedHeap(const SharedHeap&) = delete;

  // Returns memory from the beginning of a page, with any content; null for less than kLeastBytes, or if there is none.
  void* Allocate(size_t bytes);
  // `bytes` as for Allocate.
  void Free(void* memory, size_t bytes);

  // Returns the offset of bytes that are in the heap.
  std::optional<uint64_t> Find(absl::string_view bytes) const;
  // Returns nullopt if the heap has no memory.
  std::optional<HeapDescription> Describe() const;

 private:
  // Null without memory. The first page has the id.
  char* memory_ = nullptr;
  int descriptor_ = -1;
  const uint64_t bytes_;
  const uint64_t id_;
  absl::Mutex mutex_;
  HeapParts free_ ABSL_GUARDED_BY(mutex_);
};

// A mapping of another process's heap. Invariant: whatever the owner does, the memory stays mapped, but its content may
// change at any time. Thread safety: as SharedHeap.
class SharedHeapView {
 public:
  // FAILED_PRECONDITION if this process cannot read it, or it does not match the description.
  static absl::StatusOr<std::shared_ptr<SharedHeapView>> Open(const HeapDescription& description);
  ~SharedHeapView();
  SharedHeapView(const SharedHeapView&) = delete;

  // Returns nullopt unless all of it is in the heap.
  std::optional<absl::string_view> At(uint64_t offset, uint64_t bytes) const;

 private:
  SharedHeapView(const char* memory, uint64_t bytes) : memory_(memory), bytes_(bytes) {}

  const char* const memory_;
  const uint64_t bytes_;
};

// Reads another process's heap, for a process that does not trust the owner: reading pages that the owner never wrote
// gets this process no memory, as it would in a mapping, and large heaps do not use its addresses up. Thread safety: as
// SharedHeap.
class SharedHeapReader {
 public:
  // As for SharedHeapView.
  static absl::StatusOr<std::unique_ptr<SharedHeapReader>> Open(const HeapDescription& description);
  ~SharedHeapReader();
  SharedHeapReader(const SharedHeapReader&) = delete;

  // The bytes where they are, if the heap is mapped, and all of them are in pages in memory, which the seals keep
  // there. Otherwise nullopt, and only Read reads them. The owner may change the content meanwhile.
  std::optional<absl::string_view> At(uint64_t offset, uint64_t bytes) const;
  // Returns false unless all of it is in the heap. The owner may change the content meanwhile.
  bool Read(uint64_t offset, absl::Span<char> to) const;

 private:
  explicit SharedHeapReader(int descriptor) : descriptor_(descriptor) {}

  // Returns whether the bytes are known to be in memory.
  bool IsKnown(uint64_t offset, uint64_t end) const ABSL_LOCKS_EXCLUDED(mutex_);

  const int descriptor_;
  // Null if it is not mapped.
  std::shared_ptr<SharedHeapView> view_;
  uint64_t mapped_bytes_ = 0;
  mutable absl::Mutex mutex_;
  // Known to be in memory. What has been seen there stays there, so that the kernel is asked once.
  mutable HeapParts known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
