// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"

namespace ballast {

// A range of an epoch's examples that this worker trains on, as positions in the epoch's order.
struct DataLease {
  uint64_t id = 0;
  // From 0.
  uint32_t epoch = 0;
  uint64_t begin = 0;
  // One past the last; begin == end is a lease on nothing.
  uint64_t end = 0;
  // Batches to make of it, at least 1; the last ones may have fewer or no examples.
  uint32_t steps = 0;
};

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
