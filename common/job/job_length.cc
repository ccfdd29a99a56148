// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_length.h"

#include <algorithm>

namespace ballast {
namespace {

constexpr uint64_t kUsualBatches = 16;
// Leases count steps in 32 bits.
constexpr uint64_t kMaxBatches = uint64_t{1} << 20;

uint64_t DivideUp(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

}  // namespace

bool KeepsLockStep(const v1::ConsistencyPolicy& policy) { return policy.has_sync() || policy.has_local_sgd(); }

uint64_t BatchesPerPush(const v1::Job& job) {
  const uint64_t accumulated = std::max(1u, job.training().accumulate_batches());
  return accumulated * std::max(1u, job.policy().local_sgd().local_steps());
}

uint64_t BatchesPerLease(uint64_t batches_per_push) {
  if (batches_per_push >= kMaxBatches) return kMaxBatches;
  return DivideUp(kUsualBatches, batches_per_push) * batches_per_push;
}

uint64_t StreamEpochExamples(const v1::DataStream& stream) {
  return stream.epoch_examples() == 0 ? 1'000'000 : stream.epoch_examples();
}

uint64_t CountUpdates(const v1::Job& job, uint64_t examples, uint32_t workers) {
  const uint64_t batch = job.training().batch_size();
  const uint64_t per_push = std::min(BatchesPerPush(job), kMaxBatches);
  if (!KeepsLockStep(job.policy())) return DivideUp(examples, batch * per_push) * job.training().epochs();
  const uint64_t per_lease = BatchesPerLease(per_push);
  const uint64_t round = workers * per_lease * batch;
  const uint64_t last = DivideUp(DivideUp(examples % round, workers), batch);
  return (examples / round * (per_lease / per_push) + DivideUp(last, per_push)) * job.training().epochs();
}

v1::Optimizer WithScheduleLength(v1::Optimizer optimizer, uint64_t updates) {
  if (!optimizer.has_schedule()) return optimizer;
  v1::Schedule& schedule = *optimizer.mutable_schedule();
  const auto fill = [&](auto* with_total, uint64_t least) {
    if (with_total->total() > 0) return;
    with_total->set_total(std::max(least, updates));
    schedule.set_total_from_job(true);
  };
  switch (schedule.kind_case()) {
    case v1::Schedule::kPolynomial:
      fill(schedule.mutable_polynomial(), 1);
      break;
    case v1::Schedule::kCosine:
      fill(schedule.mutable_cosine(), 1);
      break;
    case v1::Schedule::kOneCycle:
      fill(schedule.mutable_one_cycle(), 2);
      break;
    default:
      break;
  }
  return optimizer;
}

}  // namespace ballast
