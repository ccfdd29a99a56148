// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"

namespace ballast {

// Owns and limits the count of bytes of requests and responses that a server holds, so that slow or greedy peers
// cannot exhaust its memory. Deliberately does not know the senders. Thread safety: all methods may be called from
// any thread.
class ByteBudget {
 public:
  // Minimum memory of a call while it waits or is sent, whatever its size: gRPC's own objects.
  static constexpr uint64_t kCallBytes = 16 << 10;

  // Reserved bytes, until destroyed. May outlive the budget, because gRPC frees a response at any time.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept { *this = std::move(other); }
    Reservation& operator=(Reservation&& other) noexcept {
      std::swap(used_, other.used_);
      std::swap(used_of_whole_, other.used_of_whole_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Reservation() { Release(); }

    void Release() {
      const uint64_t bytes = std::exchange(bytes_, 0);
      if (bytes == 0) return;
      used_->fetch_sub(bytes, std::memory_order_relaxed);
      if (used_of_whole_ != nullptr) used_of_whole_->fetch_sub(bytes, std::memory_order_relaxed);
    }

    uint64_t bytes() const { return bytes_; }

    // Releases the bytes above `bytes`.
    void ShrinkTo(uint64_t bytes) {
      if (bytes_ <= bytes) return;
      Reservation rest;
      rest.used_ = used_;
      rest.used_of_whole_ = used_of_whole_;
      rest.bytes_ = bytes_ - bytes;
      bytes_ = bytes;
    }

    // Adds the bytes of another reservation of the same budget.
    void Add(Reservation other) {
      if (bytes_ == 0) return void(*this = std::move(other));
      bytes_ += std::exchange(other.bytes_, 0);
    }

   private:
    friend class ByteBudget;
    Reservation(std::shared_ptr<std::atomic<uint64_t>> used, uint64_t bytes) : used_(std::move(used)), bytes_(bytes) {}

    std::shared_ptr<std::atomic<uint64_t>> used_, used_of_whole_;
    uint64_t bytes_ = 0;
  };

  // With `whole`, which must outlive this, this limits a part of it: each reservation also counts there.
  explicit ByteBudget(uint64_t limit, ByteBudget* whole = nullptr) : limit_(limit), whole_(whole) {}

  // RESOURCE_EXHAUSTED, and counted, above the limit; but a reservation always succeeds if none is held.
  absl::StatusOr<Reservation> Reserve(uint64_t bytes);

  // Counts bytes that are in use already, even above the limit.
  Reservation Count(uint64_t bytes);

  uint64_t used() const { return used_->load(std::memory_order_relaxed); }
  uint64_t limit() const { return limit_; }
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  const uint64_t limit_;
  ByteBudget* const whole_;
  // Shared with the reservations, which may outlive this.
  const std::shared_ptr<std::atomic<uint64_t>> used_ = std::make_shared<std::atomic<uint64_t>>(0);
  std::atomic<uint64_t> refused_{0};
};

}  // namespace ballast
