// SPDX-License-Identifier: Apache-2.0
#include "server/shard/shard_record.h"

namespace ballast {

internal::v1::LoggedDeclaration EncodeDeclaration(const JobConfig& job, absl::Span<const OwnedTensor> tensors) {
  internal::v1::LoggedDeclaration declaration;
  declaration.set_job(job.name);
  *declaration.mutable_policy() = job.policy;
  declaration.set_workers(job.workers);
  *declaration.mutable_durability() = job.durability;
  for (const OwnedTensor& tensor : tensors) {
    internal::v1::LoggedDeclaration::Tensor* to = declaration.add_tensors();
    *to->mutable_spec() = tensor.spec;
    to->mutable_slices()->Add(tensor.slices.begin(), tensor.slices.end());
  }
  return declaration;
}

JobConfig DecodeJobConfig(const internal::v1::LoggedDeclaration& declaration) {
  return {declaration.job(), declaration.policy(), declaration.workers(), declaration.durability()};
}

std::vector<OwnedTensor> DecodeTensors(const internal::v1::LoggedDeclaration& declaration) {
  std::vector<OwnedTensor> tensors;
  tensors.reserve(declaration.tensors_size());
  for (const internal::v1::LoggedDeclaration::Tensor& tensor : declaration.tensors()) {
    tensors.push_back({tensor.spec(), {tensor.slices().begin(), tensor.slices().end()}});
  }
  return tensors;
}

}  // namespace ballast
