// SPDX-License-Identifier: Apache-2.0
// Capture and restore of a ParameterShard.
#include <utility>
#include <vector>

#include "server/shard/parameter_shard.h"

namespace ballast {
namespace {

std::vector<ShardState::SliceEntry> ShareAll(absl::Span<const std::pair<SliceKey, Slice*>> slices) {
  std::vector<ShardState::SliceEntry> captured;
  captured.reserve(slices.size());
  for (const auto& [key, slice] : slices) {
    SliceState shared = slice->Share();
    captured.push_back({key, std::move(shared.weights), std::move(shared.policy)});
  }
  return captured;
}

}  // namespace

ShardState ParameterShard::Capture(absl::FunctionRef<void()> at_rest) {
  absl::MutexLock gate(&gate_);
  at_rest();
  ShardState capture = job_.Outline();
  capture.slices = ShareAll(job_.Slices());
  return capture;
}

ShardState ParameterShard::CaptureOutline(absl::FunctionRef<void()> at_rest) {
  absl::MutexLock gate(&gate_);
  at_rest();
  return job_.Outline();
}

std::vector<ShardState::SliceEntry> ParameterShard::CaptureSlices(absl::Span<const SliceKey> keys,
                                                                  absl::FunctionRef<void()> at_rest) {
  absl::MutexLock gate(&gate_);
  at_rest();
  std::vector<std::pair<SliceKey, Slice*>> slices;
  for (SliceKey key : keys) {
    const absl::StatusOr<Slice*> slice = job_.Find(key);
    if (slice.ok()) slices.emplace_back(key, *slice);
  }
  return ShareAll(slices);
}

absl::StatusOr<Resumption> ParameterShard::Load(const std::string& checkpoint, const JobConfig& job,
                                                const TensorCatalog::Addition& addition) const {
  if (checkpoint.empty()) return Resumption();
  std::vector<OwnedTensor> added;
  for (const auto& [id, tensor] : addition.tensors) added.push_back({tensor->spec, tensor->slices});
  return options_.load_checkpoint(checkpoint, job, added);
}

absl::Status ParameterShard::Restore(ShardState capture) {
  absl::StatusOr<ShardBuilder> builder = BeginRestore(std::move(capture.job), std::move(capture.tensors));
  if (!builder.ok()) return builder.status();
  for (ShardState::SliceEntry& slice : capture.slices) {
    if (absl::Status status = builder->Add(std::move(slice), 0); !status.ok()) return status;
  }
  absl::StatusOr<BuiltShard> built = (*std::move(builder)).Finish(std::move(capture.windows));
  return built.ok() ? Adopt(*std::move(built)) : built.status();
}

absl::StatusOr<ShardBuilder> ParameterShard::BeginRestore(JobConfig job, std::vector<OwnedTensor> tensors) const {
  return ShardBuilder::Begin(options_.rank, options_.max_state_bytes, std::move(job), std::move(tensors));
}

absl::Status ParameterShard::Adopt(BuiltShard built) {
  DeclaredJob::Windows windows = DeclaredJob::MakeWindows(built.job.workers, built.windows);
  absl::MutexLock declaring(&declaring_);
  absl::MutexLock gate(&gate_);
  return job_.Adopt(std::move(built.job), std::move(built.catalog), std::move(windows));
}

void ParameterShard::NoteRecovery(const ShardRecovery& recovery) {
  absl::MutexLock lock(&mutex_);
  recovery_ = recovery;
  may_have_lost_ = recovery.may_have_lost;
}

}  // namespace ballast
