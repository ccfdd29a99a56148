// SPDX-License-Identifier: Apache-2.0
#include "worker/training/lease_ends.h"

#include <utility>

namespace ballast {

void LeaseEnds::Begin(DoneLease lease) {
  Promise<Response> promise;
  response_ = promise.GetFuture();
  const absl::Status status = executor_.Submit(
      [this, lease = std::move(lease), promise = std::move(promise)]() mutable { promise.Set(End(lease)); });
  // The promise is destroyed with a task that is refused, and says so to Await.
  status.IgnoreError();
}

absl::StatusOr<LeaseEnds::Response> LeaseEnds::Await() {
  if (!response_.has_value()) return std::nullopt;
  return std::exchange(response_, std::nullopt)->Get();
}

absl::StatusOr<LeaseEnds::Response> LeaseEnds::End(const DoneLease& lease) {
  if (!lease.progress.has_value()) {
    if (lease.id == 0) return std::nullopt;
    absl::Status status = coordinator_.CompleteLease(lease.id, lease.steps, lease.batches);
    if (!status.ok()) return status;
    return std::nullopt;
  }
  std::optional<v1::ReportProgressRequest::CompletedLease> completed;
  if (lease.id != 0) {
    completed.emplace().set_lease_id(lease.id);
    completed->set_steps(lease.steps);
    completed->set_batches(lease.batches);
  }
  return coordinator_.ReportProgress(*lease.progress, lease.evaluation, completed);
}

}  // namespace ballast
