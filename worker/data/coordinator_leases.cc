// SPDX-License-Identifier: Apache-2.0
#include "worker/data/coordinator_leases.h"

namespace ballast {

absl::StatusOr<std::optional<DataLease>> CoordinatorLeases::Next() {
  while (true) {
    absl::StatusOr<v1::AcquireLeaseResponse> response = link_->AcquireLease(gather_timeout_);
    if (absl::IsDeadlineExceeded(response.status()) && link_->condition().state == v1::JOB_STATE_RUNNING) continue;
    if (!response.ok()) return response.status();
    if (response->finished()) return std::nullopt;
    const v1::Lease& lease = response->lease();
    return DataLease{lease.id(),    lease.epoch(),       lease.begin(),    lease.end(),
                     lease.steps(), lease.share_begin(), lease.share_end()};
  }
}

}  // namespace ballast
