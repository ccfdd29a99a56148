// SPDX-License-Identifier: Apache-2.0
#include "client/shared_memory/slot_pool.h"

#include "absl/status/status.h"
#include "common/shared_memory/shared_message.h"

namespace ballast {

BlockPool::BlockPool(std::shared_ptr<SharedArea> area) : area_(std::move(area)) {
  for (uint32_t block = area_->blocks(); block-- > 0;) free_.push_back(block);
}

std::optional<uint32_t> BlockPool::Take() {
  absl::MutexLock lock(&mutex_);
  for (size_t i = left_behind_.size(); i-- > 0;) {
    if (!area_->TakeBack(left_behind_[i])) continue;
    free_.push_back(left_behind_[i]);
    left_behind_.erase(left_behind_.begin() + i);
  }
  if (free_.empty()) return std::nullopt;
  const uint32_t block = free_.back();
  free_.pop_back();
  return block;
}

void BlockPool::Return(uint32_t block) {
  absl::MutexLock lock(&mutex_);
  (area_->TakeBack(block) ? free_ : left_behind_).push_back(block);
}

std::optional<BlockLoan> BlockLoan::Make(std::shared_ptr<BlockPool> pool, const grpc::ByteBuffer& message) {
  SharedArea& area = pool->area();
  const std::optional<uint32_t> block = pool->Take();
  if (!block.has_value()) return std::nullopt;
  BlockLoan loan(std::move(pool));
  loan.reference_.set_area(area.id());
  loan.reference_.set_block(*block);
  const std::optional<MessageSpot> spot = CopyMessage(message, area.Block(*block));
  if (!spot.has_value()) return std::nullopt;
  loan.reference_.set_offset(spot->offset);
  loan.reference_.set_bytes(spot->bytes);
  area.Lend(*block);
  return loan;
}

absl::StatusOr<absl::string_view> BlockLoan::Answer(const v1::SharedBlock& answer) const {
  if (answer.area() != reference_.area() || answer.block() != reference_.block()) {
    return absl::InvalidArgumentError("the answer lies in another block of shared memory than the request did");
  }
  return MessageAt(answer, pool_->area().Block(reference_.block()));
}

}  // namespace ballast
