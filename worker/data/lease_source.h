// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "common/job/data_lease.h"

namespace ballast {

// Interface to the source of a worker's leases.
// Thread safety: one thread at a time calls Next; any thread may call Cancel.
class LeaseSource {
 public:
  virtual ~LeaseSource() = default;

  // Waits for the next lease; nullopt once all epochs are done. The wait is bounded, and its error names the members
  // that it was waiting for. May be called before earlier leases are complete.
  virtual absl::StatusOr<std::optional<DataLease>> Next() = 0;

  // Makes a waiting Next, and each later one, return CANCELLED immediately.
  virtual void Cancel() = 0;
};

}  // namespace ballast
