// SPDX-License-Identifier: Apache-2.0
#include "client/shared_memory/slot_pool.h"

#include "absl/status/status.h"
#include "common/shared_memory/shared_message.h"

namespace ballast {

SlotPool::SlotPool(std::shared_ptr<SharedRegion> region) : region_(std::move(region)) {
  for (uint32_t slot = region_->slots(); slot-- > 0;) free_.push_back(slot);
}

std::optional<uint32_t> SlotPool::Take() {
  absl::MutexLock lock(&mutex_);
  for (size_t i = abandoned_.size(); i-- > 0;) {
    if (!region_->TakeBack(abandoned_[i])) continue;
    free_.push_back(abandoned_[i]);
    abandoned_.erase(abandoned_.begin() + i);
  }
  if (free_.empty()) return std::nullopt;
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void SlotPool::Return(uint32_t slot) {
  absl::MutexLock lock(&mutex_);
  (region_->TakeBack(slot) ? free_ : abandoned_).push_back(slot);
}

std::optional<BlockLoan> BlockLoan::Make(std::shared_ptr<SlotPool> pool, const grpc::ByteBuffer& message) {
  SharedRegion& region = pool->region();
  const std::optional<uint32_t> slot = pool->Take();
  if (!slot.has_value()) return std::nullopt;
  BlockLoan loan(std::move(pool));
  loan.reference_.set_region(region.id());
  loan.reference_.set_slot(*slot);
  const std::optional<MessageSpot> spot = CopyMessage(message, region.Slot(*slot));
  if (!spot.has_value()) return std::nullopt;
  loan.reference_.set_offset(spot->offset);
  loan.reference_.set_bytes(spot->bytes);
  region.Lend(*slot);
  return loan;
}

absl::StatusOr<absl::string_view> BlockLoan::Answer(const v1::SharedSlot& answer) const {
  if (answer.region() != reference_.region() || answer.slot() != reference_.slot()) {
    return absl::InvalidArgumentError("the response is in another slot of shared memory than the request");
  }
  return MessageAt(answer, pool_->region().Slot(reference_.slot()));
}

}  // namespace ballast
