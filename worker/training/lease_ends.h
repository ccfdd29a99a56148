// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "client/coordinator_link.h"
#include "client/future.h"
#include "common/concurrency/executor.h"

namespace ballast {

// A lease whose batches have all been trained, or a report without one.
struct DoneLease {
  // 0: no lease is done.
  uint64_t id = 0;
  // The worker's steps and batches at its end.
  uint64_t steps = 0;
  uint64_t batches = 0;
  // The progress that has not been reported; nullopt if all has.
  std::optional<v1::WorkerProgress> progress;
  // Reported with the progress.
  std::optional<v1::Evaluation> evaluation = std::nullopt;
};

// Tells the coordinator which leases are done and how far the worker is, in a thread of its own, so that training goes
// on during the calls.
// Thread safety: one thread calls it. The destructor waits for the calls, which end within their timeouts.
class LeaseEnds {
 public:
  // `coordinator` must outlive this.
  explicit LeaseEnds(CoordinatorLink* coordinator) : coordinator_(*coordinator) {}

  // Reports the lease's progress, then completes the lease, so that an epoch's sums are whole once its last lease is
  // done. All its pushes must have been acknowledged, and what was begun before must have been awaited.
  void Begin(DoneLease lease);

  // Returns whether Await need not wait.
  bool ready() const { return !response_.has_value() || response_->Ready(); }
  // Waits until the lease is complete. Returns the response to its report; nullopt if there was none, or if nothing
  // has begun since the last call.
  absl::StatusOr<std::optional<v1::JobProgress>> Await();

 private:
  using Response = std::optional<v1::JobProgress>;

  absl::StatusOr<Response> End(const DoneLease& lease);

  CoordinatorLink& coordinator_;
  std::optional<Future<Response>> response_;
  // Declared last, because its thread uses the coordinator.
  Executor executor_{/*threads=*/1, /*max_queued=*/1};
};

}  // namespace ballast
