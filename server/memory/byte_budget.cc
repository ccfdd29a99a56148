// SPDX-License-Identifier: Apache-2.0
#include "server/memory/byte_budget.h"

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace ballast {

absl::StatusOr<ByteBudget::Reservation> ByteBudget::Reserve(uint64_t bytes) {
  uint64_t used = used_->load(std::memory_order_relaxed);
  do {
    if (used > 0 && used + bytes > limit_) {
      refused_.fetch_add(1, std::memory_order_relaxed);
      return WithReason(
          v1::ERROR_REASON_BYTES_IN_FLIGHT,
          absl::ResourceExhaustedError(absl::StrCat("got ", bytes, " bytes more while ", used,
                                                    " bytes of requests and responses are held, want at most ", limit_,
                                                    " in all; try again later")));
    }
  } while (!used_->compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  Reservation reservation(used_, bytes);
  if (whole_ == nullptr) return reservation;
  absl::StatusOr<Reservation> of_whole = whole_->Reserve(bytes);
  if (!of_whole.ok()) return of_whole.status();
  reservation.used_of_whole_ = std::move(of_whole->used_);
  of_whole->bytes_ = 0;
  return reservation;
}

ByteBudget::Reservation ByteBudget::Count(uint64_t bytes) {
  used_->fetch_add(bytes, std::memory_order_relaxed);
  Reservation reservation(used_, bytes);
  if (whole_ == nullptr) return reservation;
  whole_->used_->fetch_add(bytes, std::memory_order_relaxed);
  reservation.used_of_whole_ = whole_->used_;
  return reservation;
}

}  // namespace ballast
