// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "client/coordinator_link.h"
#include "worker/data/lease_source.h"

namespace ballast {

// Asks the coordinator for leases. Thread safety: as LeaseSource.
class CoordinatorLeases : public LeaseSource {
 public:
  // `link` must outlive this. A single Next waits up to `gather_timeout` while members are still to join, and as long
  // as the job runs otherwise: the coordinator gives up silent members, so that a running job always goes on or fails.
  CoordinatorLeases(CoordinatorLink* link, absl::Duration gather_timeout)
      : link_(link), gather_timeout_(gather_timeout) {}

  absl::StatusOr<std::optional<DataLease>> Next() override;
  void Cancel() override { link_->CancelCalls("the worker stops"); }

 private:
  CoordinatorLink* const link_;
  const absl::Duration gather_timeout_;
};

}  // namespace ballast
