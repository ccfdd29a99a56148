// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/region_registry.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/grpc_status.h"
#include "common/shared_memory/message_pieces.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// A region with its part of the budget.
struct CountedArea {
  ByteBudget::Reservation reservation;
  std::shared_ptr<SharedRegion> region;
};

class Call : public grpc::ServerWriteReactor<v1::ShareMemoryResponse> {
 public:
  Call(const absl::Status& access, const v1::ShareMemoryRequest& request, const ParameterShard& shard, uint32_t rank,
       RegionRegistry& registry, const ServeRegion& serve)
      : registry_(registry), ending_(std::make_shared<Ending>(this)) {
    absl::Status status = access;
    if (status.ok()) status = shard.CheckJob(request.job());
    if (status.ok() && request.machine() != MachineId()) {
      status = WithReason(v1::ERROR_REASON_SHARED_MEMORY_UNAVAILABLE,
                          absl::FailedPreconditionError("the client runs on another machine or as another user"));
    }
    if (status.ok()) {
      absl::StatusOr<std::shared_ptr<SharedRegion>> region =
          registry_.Add([ending = ending_](const absl::Status& reason) { ending->End(reason); });
      status = region.status();
      if (region.ok()) region_ = *std::move(region);
    }
    if (!status.ok()) {
      ending_->End(Annotate(status, absl::StrCat("shard ", rank)));
      return;
    }
    // Without it, the client copies its messages to the slots.
    std::unique_ptr<SharedHeapReader> heap;
    if (request.has_heap()) heap = SharedHeapReader::Open(FromProto(request.heap())).value_or(nullptr);
    stop_serving_ = serve(region_, std::move(heap));
    *response_.mutable_region() = region_->Describe();
    const std::optional<HeapDescription> own = SharedHeap::OfProcess().Describe();
    if (own.has_value()) *response_.mutable_heap() = ToProto(*own);
    StartWrite(&response_);
  }

  void OnCancel() override { ending_->End(absl::CancelledError("the client has disconnected")); }
  void OnDone() override {
    if (region_ != nullptr) {
      stop_serving_();
      const uint64_t id = region_->id();
      // Unmap the region first, so that memory is not counted after the registry has dropped it.
      region_.reset();
      registry_.Release(id);
    }
    delete this;
  }

 private:
  // Ends the call once, on the first request to do so. Outlives the call.
  class Ending {
   public:
    explicit Ending(Call* call) : call_(call) {}

    void End(const absl::Status& status) {
      Call* call = nullptr;
      {
        absl::MutexLock lock(&mutex_);
        std::swap(call, call_);
      }
      if (call != nullptr) call->Finish(ToGrpcStatus(status));
    }

   private:
    absl::Mutex mutex_;
    // Null once the call has ended; until then the call is not deleted.
    Call* call_ ABSL_GUARDED_BY(mutex_);
  };

  RegionRegistry& registry_;
  const std::shared_ptr<Ending> ending_;
  std::shared_ptr<SharedRegion> region_;
  std::function<void()> stop_serving_;
  v1::ShareMemoryResponse response_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<SharedRegion>> RegionRegistry::Add(std::function<void(const absl::Status&)> end) {
  const uint64_t bytes = SharedRegion::BytesOf(kBlocks);
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  const uint64_t most = budget_.limit() / 4 * 3;
  if ((regions_.size() + 1) * bytes > most) {
    return WithReason(v1::ERROR_REASON_BYTES_IN_FLIGHT,
                      absl::ResourceExhaustedError(absl::StrCat("shared memory: ", regions_.size(), " clients have ",
                                                                regions_.size() * bytes, " bytes, want at most ", most,
                                                                ", three quarters of the bytes in flight")));
  }
  absl::StatusOr<ByteBudget::Reservation> reservation = budget_.Reserve(bytes);
  if (!reservation.ok()) return reservation.status();
  absl::StatusOr<std::shared_ptr<SharedRegion>> created = SharedRegion::Create(kBlocks);
  if (!created.ok()) return created.status();
  // Shared by the registry, the client's call and the borrowed slots: each of them keeps the memory mapped.
  const auto counted = std::make_shared<CountedArea>(CountedArea{*std::move(reservation), *std::move(created)});
  std::shared_ptr<SharedRegion> region(counted, counted->region.get());
  regions_[region->id()] = {region, std::move(end)};
  return region;
}

void RegionRegistry::Release(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  regions_.erase(id);
}

absl::StatusOr<SlotView> RegionRegistry::Borrow(uint64_t id, uint32_t slot) const {
  std::shared_ptr<SharedRegion> region;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = regions_.find(id); found != regions_.end()) region = found->second.region;
  }
  if (region == nullptr)
    return WithReason(v1::ERROR_REASON_SHARED_MEMORY_UNAVAILABLE,
                      absl::UnavailableError("message in shared memory: this server shares no such memory"));
  if (slot >= region->slots() || !region->Borrow(slot)) {
    return absl::InvalidArgumentError(
        absl::StrCat("message in shared memory: got slot ", slot, ", want a lent slot below ", region->slots()));
  }
  return SlotView(std::move(region), slot);
}

void RegionRegistry::Close(const absl::Status& reason) {
  std::vector<std::function<void(const absl::Status&)>> ends;
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) return;
    closed_ = reason;
    for (auto& [id, entry] : regions_) ends.push_back(std::move(entry.end));
    regions_.clear();
  }
  for (const auto& end : ends) end(reason);
}

size_t RegionRegistry::size() const {
  absl::MutexLock lock(&mutex_);
  return regions_.size();
}

grpc::ServerWriteReactor<v1::ShareMemoryResponse>* ShareMemory(const absl::Status& access,
                                                               const v1::ShareMemoryRequest& request,
                                                               const ParameterShard& shard, uint32_t rank,
                                                               RegionRegistry& registry, const ServeRegion& serve) {
  return new Call(access, request, shard, rank, registry, serve);
}

}  // namespace ballast
