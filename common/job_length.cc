// SPDX-License-Identifier: Apache-2.0
#include "common/job_length.h"

#include <algorithm>

namespace ballast {
namespace {

constexpr uint64_t kUsualBatches = 16;
// Leases count their steps in 32 bits.
constexpr uint64_t kMostBatches = uint64_t{1} << 20;

uint64_t DivideUp(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

}  // namespace

bool KeepsLockStep(const v1::ConsistencyPolicy& policy) { return policy.has_sync() || policy.has_local_sgd(); }

uint64_t BatchesPerPush(const v1::Job& job) {
  const uint64_t accumulated = std::max(1u, job.training().accumulate_batches());
  return accumulated * std::max(1u, job.policy().local_sgd().local_steps());
}

uint64_t BatchesPerLease(uint64_t batches_per_push) {
  if (batches_per_push >= kMostBatches) return kMostBatches;
  return DivideUp(kUsualBatches, batches_per_push) * batches_per_push;
}

uint64_t CountUpdates(const v1::Job& job, uint64_t examples, uint32_t workers) {
  const uint64_t batch = job.training().batch_size();
  const uint64_t per_push = std::min(BatchesPerPush(job), kMostBatches);
  if (!KeepsLockStep(job.policy())) return DivideUp(examples, batch * per_push) * job.training().epochs();
  const uint64_t per_lease = BatchesPerLease(per_push);
  const uint64_t round = workers * per_lease * batch;
  const uint64_t last = DivideUp(DivideUp(examples % round, workers), batch);
  return (examples / round * (per_lease / per_push) + DivideUp(last, per_push)) * job.training().epochs();
}

v1::Optimizer WithScheduleLength(v1::Optimizer optimizer, uint64_t updates) {
  if (!optimizer.has_schedule()) return optimizer;
  v1::Schedule& schedule = *optimizer.mutable_schedule();
  switch (schedule.kind_case()) {
    case v1::Schedule::kPolynomial:
      if (schedule.polynomial().total() == 0) schedule.mutable_polynomial()->set_total(std::max<uint64_t>(1, updates));
      break;
    case v1::Schedule::kCosine:
      if (schedule.cosine().total() == 0) schedule.mutable_cosine()->set_total(std::max<uint64_t>(1, updates));
      break;
    case v1::Schedule::kOneCycle:
      if (schedule.one_cycle().total() == 0) schedule.mutable_one_cycle()->set_total(std::max<uint64_t>(2, updates));
      break;
    default:
      break;
  }
  return optimizer;
}

}  // namespace ballast
