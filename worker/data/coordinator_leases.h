// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "client/coordinator_link.h"
#include "worker/data/lease_source.h"

namespace ballast {

// Acquires leases from the coordinator. Thread safety: same as LeaseSource.
class CoordinatorLeases : public LeaseSource {
 public:
  // `link` must outlive this. Next waits up to `gather_timeout` while the job gathers, and without limit while it runs:
  // the coordinator detects lost members, so a running job always continues or fails.
  CoordinatorLeases(CoordinatorLink* link, absl::Duration gather_timeout)
      : link_(link), gather_timeout_(gather_timeout) {}

  absl::StatusOr<std::optional<DataLease>> Next() override;
  void Cancel() override { link_->CancelCalls("the worker stops"); }

 private:
  CoordinatorLink* const link_;
  const absl::Duration gather_timeout_;
};

}  // namespace ballast
