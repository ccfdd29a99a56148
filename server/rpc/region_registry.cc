// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/region_registry.h"

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// An area with its part of the budget.
struct CountedArea {
  ByteBudget::Reservation reservation;
  std::shared_ptr<SharedArea> area;
};

}  // namespace

absl::StatusOr<std::shared_ptr<SharedArea>> AreaRegistry::Add(std::function<void(const absl::Status&)> end) {
  const uint64_t bytes = SharedArea::BytesOf(kBlocks);
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  const uint64_t most = budget_.limit() / 4 * 3;
  if ((areas_.size() + 1) * bytes > most) {
    return WithReason(v1::ERROR_REASON_BYTES_IN_FLIGHT,
                      absl::ResourceExhaustedError(absl::StrCat("shared memory: ", areas_.size(), " clients have ",
                                                                areas_.size() * bytes, " bytes, want at most ", most,
                                                                ", three quarters of the bytes in flight")));
  }
  absl::StatusOr<ByteBudget::Reservation> reservation = budget_.Reserve(bytes);
  if (!reservation.ok()) return reservation.status();
  absl::StatusOr<std::shared_ptr<SharedArea>> created = SharedArea::Create(kBlocks);
  if (!created.ok()) return created.status();
  // Shared by the registry, the client's call and the borrowed blocks: each of them keeps the memory mapped.
  const auto counted = std::make_shared<CountedArea>(CountedArea{*std::move(reservation), *std::move(created)});
  std::shared_ptr<SharedArea> area(counted, counted->area.get());
  areas_[area->id()] = {area, std::move(end)};
  return area;
}

void AreaRegistry::Release(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  areas_.erase(id);
}

absl::StatusOr<BorrowedBlock> AreaRegistry::Borrow(uint64_t id, uint32_t block) const {
  std::shared_ptr<SharedArea> area;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = areas_.find(id); found != areas_.end()) area = found->second.area;
  }
  if (area == nullptr)
    return WithReason(v1::ERROR_REASON_SHARED_MEMORY_UNAVAILABLE,
                      absl::UnavailableError("message in shared memory: this server shares no such memory"));
  if (block >= area->blocks() || !area->Borrow(block)) {
    return absl::InvalidArgumentError(
        absl::StrCat("message in shared memory: got block ", block, ", want one that was lent, of ", area->blocks()));
  }
  return BorrowedBlock(std::move(area), block);
}

void AreaRegistry::Close(const absl::Status& reason) {
  std::vector<std::function<void(const absl::Status&)>> ends;
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) return;
    closed_ = reason;
    for (auto& [id, entry] : areas_) ends.push_back(std::move(entry.end));
    areas_.clear();
  }
  for (const auto& end : ends) end(reason);
}

size_t AreaRegistry::size() const {
  absl::MutexLock lock(&mutex_);
  return areas_.size();
}

}  // namespace ballast
