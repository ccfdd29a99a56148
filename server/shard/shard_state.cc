// SPDX-License-Identifier: Apache-2.0
#include "server/shard/shard_state.h"

#include "absl/strings/str_cat.h"
#include "common/job/job_config.h"
#include "common/tensors/tensor_spec.h"

namespace ballast {
namespace {

constexpr uint32_t kMaxWorkers = 4096;

}  // namespace

absl::Status ValidateJobConfig(const JobConfig& job) {
  if (absl::Status status = ValidateJobName(job.name); !status.ok()) return status;
  if (job.workers < 1 || job.workers > kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat("workers: got ", job.workers, ", want 1 to ", kMaxWorkers));
  }
  return ValidatePolicy(job.policy, job.workers);
}

}  // namespace ballast
