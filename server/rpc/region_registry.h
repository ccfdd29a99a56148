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
#include "ballast/v1/parameter_service.pb.h"
#include "common/shared_memory/shared_heap.h"
#include "common/shared_memory/shared_region.h"
#include "grpcpp/support/server_callback.h"
#include "server/memory/byte_budget.h"
#include "server/shard/parameter_shard.h"

namespace ballast {

// Owns a slot that a client has lent, and keeps its region mapped. Returns the slot when destroyed.
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

// Owns the memory that a server shares with clients on its machine. Invariant: memory counts toward the budget of
// bytes in flight as long as it is mapped, and all regions together take at most three quarters of the budget. Thread
// safety: all methods may be called from any thread.
class RegionRegistry {
 public:
  // Slots per client: the messages that it may have in flight in shared memory.
  static constexpr uint32_t kBlocks = 8;

  // `budget` outlives this.
  explicit RegionRegistry(ByteBudget* budget) : budget_(*budget) {}

  // Creates a region. Close calls `end` once, unless Release came first. RESOURCE_EXHAUSTED if there is no room;
  // UNAVAILABLE after Close.
  absl::StatusOr<std::shared_ptr<SharedRegion>> Add(std::function<void(const absl::Status&)> end);
  // The client has disconnected; the memory is unmapped with the last message in it.
  void Release(uint64_t id);

  // UNAVAILABLE if the region is not this server's; the client must then send the message itself. INVALID_ARGUMENT if
  // the slot is not lent.
  absl::StatusOr<SlotView> Borrow(uint64_t id, uint32_t slot) const;

  // Ends all regions and refuses new ones.
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

// Begins to serve the calls that a client makes in a region's slots, with messages partly in the client's heap if that
// is not null. Returns a function that ends that.
using ServeRegion =
    std::function<std::function<void()>(std::shared_ptr<SharedRegion>, std::unique_ptr<SharedHeapReader>)>;

// Serves ParameterService.ShareMemory: gives the client a region, and serves it, until the call ends, or ends the call
// with `access` if that is an error. `shard` and `registry` outlive the call.
grpc::ServerWriteReactor<v1::ShareMemoryResponse>* ShareMemory(const absl::Status& access,
                                                               const v1::ShareMemoryRequest& request,
                                                               const ParameterShard& shard, uint32_t rank,
                                                               RegionRegistry& registry, const ServeRegion& serve);

}  // namespace ballast
