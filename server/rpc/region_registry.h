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

// A slot that a client has lent, until destroyed; keeps its region.
class SlotView {
 public:
  SlotView(std::shared_ptr<SharedRegion> region, uint32_t slot) : region_(std::move(region)), slot_(slot) {}
  SlotView(SlotView&& other) noexcept = default;
  SlotView& operator=(SlotView&& other) noexcept {
    std::swap(region_, other.region_);
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~SlotView() {
    if (region_ != nullptr) region_->GiveBack(slot_);
  }

  absl::Span<char> memory() const { return region_->Slot(slot_); }
  uint64_t region() const { return region_->id(); }
  uint32_t slot() const { return slot_; }

 private:
  // Null once moved from.
  std::shared_ptr<SharedRegion> region_;
  uint32_t slot_;
};

// The memory that a server shares with clients of its machine. Invariant: it is counted in the budget of bytes in
// flight as long as it is mapped, and that of the clients takes at most three quarters of the budget. Thread safety:
// all methods may be called from any thread.
class RegionRegistry {
 public:
  // Messages that a client may have on their way in shared memory.
  static constexpr uint32_t kBlocks = 8;

  // `budget` outlives this.
  explicit RegionRegistry(ByteBudget* budget) : budget_(*budget) {}

  // A new region; `end` is called by Close, once, unless Release was before. RESOURCE_EXHAUSTED where there is no room;
  // UNAVAILABLE after Close.
  absl::StatusOr<std::shared_ptr<SharedRegion>> Add(std::function<void(const absl::Status&)> end);
  // The client is gone: the memory goes with the last message in it.
  void Release(uint64_t id);

  // UNAVAILABLE where the region is none of this server's: the client shall send the message itself. INVALID_ARGUMENT
  // where the slot is not lent.
  absl::StatusOr<SlotView> Borrow(uint64_t id, uint32_t slot) const;

  // Ends all regions, now and from now on.
  void Close(const absl::Status& reason);

  size_t size() const;

 private:
  struct Entry {
    std::shared_ptr<SharedRegion> region;
    std::function<void(const absl::Status&)> end;
  };

  ByteBudget& budget_;
  mutable absl::Mutex mutex_;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Entry> regions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
