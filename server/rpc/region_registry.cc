// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/region_registry.h"

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// A region with its part of the budget.
struct CountedArea {
  ByteBudget::Reservation reservation;
  std::shared_ptr<SharedRegion> region;
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

}  // namespace ballast
