// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/shared_memory/shared_region.h"
#include "grpcpp/support/byte_buffer.h"

namespace ballast {

// A client's slots of a shared region: which are free. Invariant: a slot that the server may still use is not free.
// Thread safety: all methods may be called from any thread.
class SlotPool {
 public:
  explicit SlotPool(std::shared_ptr<SharedRegion> region);

  // The slot that was free last, whose memory is in the caches still.
  std::optional<uint32_t> Take();
  // Of a slot that was lent, whatever became of it.
  void Return(uint32_t slot);

  SharedRegion& region() { return *region_; }

 private:
  const std::shared_ptr<SharedRegion> region_;
  absl::Mutex mutex_;
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mutex_);
  // Of calls that were given up while the server used them.
  std::vector<uint32_t> left_behind_ ABSL_GUARDED_BY(mutex_);
};

// A message that was lent to the server in a slot, until destroyed. Thread safety: none.
class BlockLoan {
 public:
  // Nothing where no slot is free or large enough.
  static std::optional<BlockLoan> Make(std::shared_ptr<SlotPool> pool, const grpc::ByteBuffer& message);
  BlockLoan(BlockLoan&& other) noexcept = default;
  BlockLoan& operator=(BlockLoan&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(reference_, other.reference_);
    return *this;
  }
  ~BlockLoan() {
    if (pool_ != nullptr) pool_->Return(reference_.slot());
  }

  // To be sent in the message's stead.
  const v1::SharedSlot& reference() const { return reference_; }

  // The answer that the server wrote in the message's place, while this lasts. INVALID_ARGUMENT where it says that it
  // lies elsewhere.
  absl::StatusOr<absl::string_view> Answer(const v1::SharedSlot& answer) const;

 private:
  explicit BlockLoan(std::shared_ptr<SlotPool> pool) : pool_(std::move(pool)) {}

  // Null once moved from.
  std::shared_ptr<SlotPool> pool_;
  v1::SharedSlot reference_;
};

}  // namespace ballast
