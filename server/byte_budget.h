// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"

namespace ballast {

// Bounds the bytes of requests and answers that a server holds at once, so that slow or greedy peers cannot make its
// memory grow. Knows nothing of who sends them. Thread safety: all methods may be called from any thread.
class ByteBudget {
 public:
  // Bytes that were let in, until destroyed. May outlive the budget: the network lets go of an answer when it likes.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept : used_(std::move(other.used_)), bytes_(std::exchange(other.bytes_, 0)) {}
    Reservation& operator=(Reservation&& other) noexcept {
      std::swap(used_, other.used_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Reservation() { Release(); }

    void Release() {
      if (bytes_ > 0) used_->fetch_sub(std::exchange(bytes_, 0), std::memory_order_relaxed);
    }

   private:
    friend class ByteBudget;
    Reservation(std::shared_ptr<std::atomic<uint64_t>> used, uint64_t bytes) : used_(std::move(used)), bytes_(bytes) {}

    std::shared_ptr<std::atomic<uint64_t>> used_;
    uint64_t bytes_ = 0;
  };

  explicit ByteBudget(uint64_t limit) : limit_(limit) {}

  // RESOURCE_EXHAUSTED, and counted, where more would be held than the limit; a single one always gets in.
  absl::StatusOr<Reservation> Reserve(uint64_t bytes);

  uint64_t used() const { return used_->load(std::memory_order_relaxed); }
  uint64_t limit() const { return limit_; }
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  const uint64_t limit_;
  // Shared with the reservations, which may outlive this.
  const std::shared_ptr<std::atomic<uint64_t>> used_ = std::make_shared<std::atomic<uint64_t>>(0);
  std::atomic<uint64_t> refused_{0};
};

}  // namespace ballast
