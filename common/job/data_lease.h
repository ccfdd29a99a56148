// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ballast {

// A range of an epoch's examples that one worker holds, as positions in the epoch's order: ballast.v1.Lease. Without
// steps: a mark that all data of `epoch` epochs is done, and that the job awaits their evaluation.
struct DataLease {
  uint64_t id = 0;
  // Counts from 0.
  uint32_t epoch = 0;
  uint64_t begin = 0;
  // One past the last position; begin == end is an empty lease.
  uint64_t end = 0;
  // Number of batches; the last ones may have fewer examples, or none.
  uint32_t steps = 0;
  // Fraction of the job's examples that is done when the lease begins, and when it ends.
  double share_begin = 0;
  double share_end = 0;
};

}  // namespace ballast
