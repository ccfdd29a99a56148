// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "common/job/data_lease.h"

namespace ballast {

// Where a worker's leases come from.
//
// Thread safety: Next by one thread at a time, Cancel by any.
class LeaseSource {
 public:
  virtual ~LeaseSource() = default;

  // The next lease, or nothing once all epochs are done. Waits for one, but not without bound: the error then names
  // whom it waited for. May be called while earlier leases are still worked on.
  virtual absl::StatusOr<std::optional<DataLease>> Next() = 0;

  // Ends a Next that waits, and each later one, with CANCELLED, at once.
  virtual void Cancel() = 0;
};

}  // namespace ballast
