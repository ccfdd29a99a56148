// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/shared_memory/shared_region.h"
#include "server/memory/byte_budget.h"

namespace ballast {

// A block that a client has lent, until destroyed; keeps its area.
class BorrowedBlock {
 public:
  BorrowedBlock(std::shared_ptr<SharedArea> area, uint32_t block) : area_(std::move(area)), block_(block) {}
  BorrowedBlock(BorrowedBlock&& other) noexcept = default;
  BorrowedBlock& operator=(BorrowedBlock&& other) noexcept {
    std::swap(area_, other.area_);
    std::swap(block_, other.block_);
    return *this;
  }
  ~BorrowedBlock() {
    if (area_ != nullptr) area_->GiveBack(block_);
  }

  absl::Span<char> memory() const { return area_->Block(block_); }
  uint64_t area() const { return area_->id(); }
  uint32_t block() const { return block_; }

 private:
  // Null once moved from.
  std::shared_ptr<SharedArea> area_;
  uint32_t block_;
};

// The memory that a server shares with clients of its machine. Invariant: it is counted in the budget of bytes in
// flight as long as it is mapped, and that of the clients takes at most three quarters of the budget. Thread safety:
// all methods may be called from any thread.
class AreaRegistry {
 public:
  // Messages that a client may have on their way in shared memory.
  static constexpr uint32_t kBlocks = 8;

  // `budget` outlives this.
  explicit AreaRegistry(ByteBudget* budget) : budget_(*budget) {}

  // A new area; `end` is called by Close, once, unless Release was before. RESOURCE_EXHAUSTED where there is no room;
  // UNAVAILABLE after Close.
  absl::StatusOr<std::shared_ptr<SharedArea>> Add(std::function<void(const absl::Status&)> end);
  // The client is gone: the memory goes with the last message in it.
  void Release(uint64_t id);

  // UNAVAILABLE where the area is none of this server's: the client shall send the message itself. INVALID_ARGUMENT
  // where the block is not lent.
  absl::StatusOr<BorrowedBlock> Borrow(uint64_t id, uint32_t block) const;

  // Ends all areas, now and from now on.
  void Close(const absl::Status& reason);

  size_t size() const;

 private:
  struct Entry {
    std::shared_ptr<SharedArea> area;
    std::function<void(const absl::Status&)> end;
  };

  ByteBudget& budget_;
  mutable absl::Mutex mutex_;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Entry> areas_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
