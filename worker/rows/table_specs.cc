// SPDX-License-Identifier: Apache-2.0
#include "worker/rows/table_specs.h"

#include "absl/algorithm/container.h"
#include "common/job/job_length.h"

namespace ballast {
namespace {

// Standard deviation of the initial weights of rows that name no initializer.
constexpr float kInitialStddev = 0.01f;

}  // namespace

const v1::ConsistencyPolicy& PolicyOf(const v1::EmbeddingTable& table, const v1::Job& job) {
  return table.has_policy() ? table.policy() : job.policy();
}

std::vector<v1::TableSpec> TableSpecs(const v1::Job& job, uint32_t first_id, uint64_t updates) {
  std::vector<v1::TableSpec> specs;
  for (const v1::EmbeddingTable& table : job.model().tables()) {
    v1::TableSpec& spec = specs.emplace_back();
    spec.set_id(first_id + specs.size() - 1);
    spec.set_name(table.name());
    spec.set_dim(table.dim());
    spec.set_seed(job.seed());
    *spec.mutable_initializer() = table.initializer();
    if (spec.initializer().kind_case() == v1::Initializer::KIND_NOT_SET) {
      spec.mutable_initializer()->mutable_normal()->set_stddev(kInitialStddev);
    }
    *spec.mutable_optimizer() =
        WithScheduleLength(table.has_optimizer() ? table.optimizer() : job.optimizer(), updates);
    if (table.has_policy()) *spec.mutable_policy() = table.policy();
    if (table.has_admission()) *spec.mutable_admission() = table.admission();
    if (table.has_eviction()) *spec.mutable_eviction() = table.eviction();
    spec.set_range_bits(table.range_bits());
  }
  return specs;
}

bool PullsEarly(const v1::Job& job) {
  return absl::c_all_of(job.model().tables(), [&](const v1::EmbeddingTable& table) {
    const v1::ConsistencyPolicy& policy = PolicyOf(table, job);
    return policy.has_async() || policy.bounded().steps_ahead() > 0;
  });
}

}  // namespace ballast
