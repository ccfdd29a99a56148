// SPDX-License-Identifier: Apache-2.0
#include "worker/training/coordinator_leases.h"

namespace ballast {

absl::StatusOr<std::optional<DataLease>> CoordinatorLeases::Next() {
  while (true) {
    absl::StatusOr<v1::AcquireLeaseResponse> answer = link_->AcquireLease(gather_timeout_);
    if (absl::IsDeadlineExceeded(answer.status()) && link_->condition().state == v1::JOB_STATE_RUNNING) continue;
    if (!answer.ok()) return answer.status();
    if (answer->finished()) return std::nullopt;
    const v1::Lease& lease = answer->lease();
    return DataLease{lease.id(),    lease.epoch(),       lease.begin(),    lease.end(),
                     lease.steps(), lease.share_begin(), lease.share_end()};
  }
}

}  // namespace ballast
