// SPDX-License-Identifier: Apache-2.0
#include "server/tensors/tensor_catalog.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/concurrency/executor.h"
#include "common/program/core_count.h"
#include "common/status/error_reason.h"
#include "common/tensors/declarations.h"
#include "common/tensors/tensor_spec.h"

namespace ballast {
namespace {

// Estimated bytes for a tensor, and again for each of its slices: names, table entries, policy and buffer objects.
constexpr uint64_t kKeptBytes = 1024;

absl::Status CheckSlices(OwnedTensor& tensor) {
  const uint64_t elements = CountElements(tensor.spec);
  std::sort(tensor.slices.begin(), tensor.slices.end(),
            [](const v1::SliceRange& a, const v1::SliceRange& b) { return a.index() < b.index(); });
  uint64_t next = 0;
  for (size_t i = 0; i < tensor.slices.size(); ++i) {
    const v1::SliceRange& slice = tensor.slices[i];
    if (slice.elements() < 1 || slice.elements() > kMaxSliceElements || slice.offset() > elements ||
        slice.elements() > elements - slice.offset()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor.spec.name(), "\" slice ", slice.index(),
                                                     ": got ", slice.elements(), " elements from ", slice.offset(),
                                                     ", want 1 to ", kMaxSliceElements, " within ", elements));
    }
    if (i > 0 && (slice.index() == tensor.slices[i - 1].index() || slice.offset() < next)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", tensor.spec.name(), "\" slice ", slice.index(), " overlaps the one before it"));
    }
    next = slice.offset() + slice.elements();
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TensorCatalog::CutWhole(std::vector<OwnedTensor>& tensors) const {
  uint64_t bytes = 0;
  for (OwnedTensor& tensor : tensors) {
    if (absl::Status status = ValidateTensorSpec(tensor.spec); !status.ok()) return status;
    if (!tensor.slices.empty()) continue;
    const uint64_t elements = CountElements(tensor.spec);
    bytes += elements * sizeof(float);
    // Checked before a huge tensor's list of slices is built.
    if (bytes > max_bytes_) {
      return WithReason(
          v1::ERROR_REASON_MEMORY_LIMIT,
          absl::FailedPreconditionError(absl::StrCat("tensor \"", tensor.spec.name(), "\": this shard would hold ",
                                                     bytes, " bytes, at most ", max_bytes_, " are allowed")),
          {{"tensor", tensor.spec.name()}});
    }
    tensor.slices = CutIntoSlices(tensor.spec);
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorCatalog::Addition> TensorCatalog::Plan(std::vector<OwnedTensor>& tensors) const {
  Addition addition;
  absl::flat_hash_set<uint32_t> ids;
  absl::flat_hash_map<std::string, uint32_t> names;
  for (const auto& [id, tensor] : tensors_) names.emplace(tensor->spec.name(), id);
  for (OwnedTensor& tensor : tensors) {
    const auto same_name = names.find(tensor.spec.name());
    const auto known = tensors_.find(same_name != names.end() ? same_name->second : tensor.spec.id());
    if (known != tensors_.end()) {
      if (absl::Status status = CheckSameSpec(known->second->spec, tensor.spec); !status.ok()) return status;
      const auto equal = [](const v1::SliceRange& a, const v1::SliceRange& b) {
        return a.index() == b.index() && a.offset() == b.offset() && a.elements() == b.elements();
      };
      const std::vector<v1::SliceRange>& slices = known->second->slices;
      if (!std::equal(slices.begin(), slices.end(), tensor.slices.begin(), tensor.slices.end(), equal)) {
        return WithReason(v1::ERROR_REASON_TENSOR_DIFFERS,
                          absl::FailedPreconditionError(absl::StrCat("tensor \"", tensor.spec.name(),
                                                                     "\" was declared before with other slices")),
                          {{"tensor", tensor.spec.name()}});
      }
      continue;
    }
    if (same_name != names.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", tensor.spec.name(), "\" appears twice in the message"));
    }
    absl::StatusOr<std::unique_ptr<Optimizer>> optimizer = MakeOptimizer(tensor.spec.optimizer());
    if (!optimizer.ok()) return optimizer.status();
    for (const v1::SliceRange& slice : tensor.slices) {
      addition.bytes += slice.elements() * sizeof(float) * (1 + (*optimizer)->slots());
    }
    addition.other_bytes += kKeptBytes * (1 + tensor.slices.size());
    const uint64_t would_hold = bytes_ + addition.bytes + other_bytes_ + addition.other_bytes;
    if (would_hold > max_bytes_) {
      return WithReason(
          v1::ERROR_REASON_MEMORY_LIMIT,
          absl::FailedPreconditionError(absl::StrCat("tensor \"", tensor.spec.name(), "\": this shard would hold ",
                                                     would_hold, " bytes, at most ", max_bytes_, " are allowed")),
          {{"tensor", tensor.spec.name()}});
    }
    names.emplace(tensor.spec.name(), tensor.spec.id());
    if (!ids.insert(tensor.spec.id()).second) {
      return absl::InvalidArgumentError(absl::StrCat("tensor id ", tensor.spec.id(), " appears twice in the message"));
    }
    addition.tensors.emplace_back(tensor.spec.id(),
                                  std::make_unique<Tensor>(Tensor{tensor.spec, *std::move(optimizer), tensor.slices}));
  }
  return addition;
}

absl::StatusOr<TensorCatalog::Addition> TensorCatalog::Check(std::vector<OwnedTensor>& tensors) const {
  if (absl::Status status = CutWhole(tensors); !status.ok()) return status;
  for (OwnedTensor& tensor : tensors) {
    if (absl::Status status = CheckSlices(tensor); !status.ok()) return status;
  }
  return Plan(tensors);
}

absl::Status TensorCatalog::MakeSlices(const v1::ConsistencyPolicy& policy, uint32_t workers, SavedSlices saved,
                                       absl::FunctionRef<absl::Status()> check, Addition& addition) {
  struct Plan {
    const Tensor* tensor;
    const v1::SliceRange* range;
    SliceState* saved;
    absl::Status status;
  };
  std::vector<Plan> plans;
  size_t used = 0;
  for (const auto& [id, tensor] : addition.tensors) {
    for (const v1::SliceRange& range : tensor->slices) {
      const SliceKey key{id, range.index()};
      const auto found = saved.find(key);
      plans.push_back({tensor.get(), &range, found == saved.end() ? nullptr : &found->second, absl::OkStatus()});
      addition.slices.emplace_back(key, nullptr);
      used += found != saved.end();
    }
  }
  if (used < saved.size()) {
    return absl::NotFoundError(absl::StrCat("got the state of ", saved.size() - used, " slices that are not declared"));
  }
  ParallelFor(plans.size(), CoreCount(), [&](size_t index) {
    Plan& plan = plans[index];
    plan.status = check();
    if (!plan.status.ok()) return;
    const Optimizer* const optimizer = plan.tensor->optimizer.get();
    auto weights = plan.saved == nullptr ? std::make_unique<SliceWeights>(plan.tensor->spec, *plan.range, optimizer)
                                         : std::make_unique<SliceWeights>(*plan.range, optimizer);
    auto slice =
        std::make_unique<Slice>(plan.tensor->spec.name(), *plan.range, std::move(weights),
                                *MakeSlicePolicy(policy, workers), plan.tensor->spec.initializer().has_provided());
    if (plan.saved != nullptr) plan.status = slice->Restore(std::move(*plan.saved));
    addition.slices[index].second = std::move(slice);
  });
  for (const Plan& plan : plans) {
    if (!plan.status.ok()) return plan.status;
  }
  return absl::OkStatus();
}

void TensorCatalog::Add(Addition addition) {
  bytes_ += addition.bytes;
  other_bytes_ += addition.other_bytes;
  for (auto& [id, tensor] : addition.tensors) {
    declared_slices_ += tensor->slices.size();
    tensors_[id] = std::move(tensor);
  }
  for (auto& [key, slice] : addition.slices) slices_[key] = std::move(slice);
}

absl::Status TensorCatalog::Insert(SliceKey key, SliceState captured, const v1::ConsistencyPolicy& policy,
                                   uint32_t workers) {
  const auto tensor = tensors_.find(key.tensor_id);
  if (tensor == tensors_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", key.tensor_id, " is not declared"));
  }
  const Tensor& of = *tensor->second;
  const auto range = std::lower_bound(of.slices.begin(), of.slices.end(), key.slice_index,
                                      [](const v1::SliceRange& a, uint32_t index) { return a.index() < index; });
  if (range == of.slices.end() || range->index() != key.slice_index) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", of.spec.name(), "\" has no slice ", key.slice_index, " on this shard"));
  }
  if (slices_.contains(key)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", of.spec.name(), "\" slice ", key.slice_index, " was added twice"));
  }
  auto slice_policy = MakeSlicePolicy(policy, workers);
  if (!slice_policy.ok()) return slice_policy.status();
  auto slice =
      std::make_unique<Slice>(of.spec.name(), *range, std::make_unique<SliceWeights>(*range, of.optimizer.get()),
                              *std::move(slice_policy), of.spec.initializer().has_provided());
  if (absl::Status status = slice->Restore(std::move(captured)); !status.ok()) return status;
  slices_[key] = std::move(slice);
  return absl::OkStatus();
}

absl::StatusOr<Slice*> TensorCatalog::Find(SliceKey key) const {
  const auto slice = slices_.find(key);
  if (slice != slices_.end()) return slice->second.get();
  const auto tensor = tensors_.find(key.tensor_id);
  if (tensor == tensors_.end()) {
    return WithReason(
        v1::ERROR_REASON_UNKNOWN_TENSOR,
        absl::NotFoundError(absl::StrCat("shard ", shard_, ": tensor ", key.tensor_id, " is not declared")),
        {{"tensor", absl::StrCat(key.tensor_id)}});
  }
  const std::string& name = tensor->second->spec.name();
  return WithReason(v1::ERROR_REASON_NOT_OWNER,
                    absl::FailedPreconditionError(
                        absl::StrCat("shard ", shard_, ": does not own slice ", key.slice_index, " of \"", name, "\"")),
                    {{"tensor", name}, {"slice", absl::StrCat(key.slice_index)}});
}

TensorCatalog::Memory TensorCatalog::memory() const {
  Memory memory;
  for (const auto& [key, slice] : slices_) {
    memory.weights += slice->range().elements() * sizeof(float);
    memory.policies += slice->policy_bytes();
  }
  return memory;
}

std::vector<OwnedTensor> TensorCatalog::Tensors() const {
  std::vector<OwnedTensor> tensors;
  tensors.reserve(tensors_.size());
  for (const auto& [id, tensor] : tensors_) tensors.push_back({tensor->spec, tensor->slices});
  std::sort(tensors.begin(), tensors.end(),
            [](const OwnedTensor& a, const OwnedTensor& b) { return a.spec.id() < b.spec.id(); });
  return tensors;
}

std::vector<std::pair<SliceKey, Slice*>> TensorCatalog::Slices() const {
  std::vector<std::pair<SliceKey, Slice*>> slices;
  slices.reserve(slices_.size());
  for (const auto& [key, slice] : slices_) slices.emplace_back(key, slice.get());
  std::sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first.tensor_id, a.first.slice_index) < std::tie(b.first.tensor_id, b.first.slice_index);
  });
  return slices;
}

}  // namespace ballast
