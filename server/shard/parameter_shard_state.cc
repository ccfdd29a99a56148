// SPDX-License-Identifier: Apache-2.0
// Capture and restore of a ParameterShard.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
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

ShardState ParameterShard::OutlineLocked() const {
  ShardState capture;
  capture.job = job_;
  capture.tensors = catalog_.Tensors();
  for (const auto& window : windows_) capture.windows.push_back(window->Save());
  return capture;
}

ShardState ParameterShard::Capture(absl::FunctionRef<void()> at_rest) {
  absl::MutexLock gate(&gate_);
  at_rest();
  ShardState capture;
  std::vector<std::pair<SliceKey, Slice*>> slices;
  {
    absl::ReaderMutexLock lock(&mutex_);
    capture = OutlineLocked();
    slices = catalog_.Slices();
  }
  capture.slices = ShareAll(slices);
  return capture;
}

ShardState ParameterShard::CaptureOutline(absl::FunctionRef<void()> at_rest) {
  absl::MutexLock gate(&gate_);
  at_rest();
  absl::ReaderMutexLock lock(&mutex_);
  return OutlineLocked();
}

std::vector<ShardState::SliceEntry> ParameterShard::CaptureSlices(absl::Span<const SliceKey> keys,
                                                                  absl::FunctionRef<void()> at_rest) {
  absl::MutexLock gate(&gate_);
  at_rest();
  std::vector<std::pair<SliceKey, Slice*>> slices;
  {
    absl::ReaderMutexLock lock(&mutex_);
    for (SliceKey key : keys) {
      const absl::StatusOr<Slice*> slice = catalog_.Find(key);
      if (slice.ok()) slices.emplace_back(key, *slice);
    }
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

absl::Status ParameterShard::MakeSlices(const JobConfig& job, std::vector<ShardState::SliceEntry> saved,
                                        TensorCatalog::Addition& addition) const {
  TensorCatalog::SavedSlices slices;
  for (ShardState::SliceEntry& slice : saved) {
    slices[slice.key] = {std::move(slice.weights), std::move(slice.policy)};
  }
  // A closed shard does not need the slices.
  return TensorCatalog::MakeSlices(
      job.policy, job.workers, std::move(slices), [this] { return closed(); }, addition);
}

absl::Status ParameterShard::Restore(ShardState capture) {
  if (absl::Status status = ValidateJobConfig(capture.job); !status.ok()) return status;
  absl::MutexLock declaring(&declaring_);
  absl::StatusOr<TensorCatalog::Addition> addition;
  {
    absl::ReaderMutexLock lock(&mutex_);
    if (!job_.name.empty())
      return WithReason(v1::ERROR_REASON_JOB_DIFFERS, absl::FailedPreconditionError("the shard already holds a job"));
    addition = catalog_.Check(capture.tensors);
  }
  if (!addition.ok()) return addition.status();
  if (capture.windows.size() > capture.job.workers) {
    return absl::InvalidArgumentError(
        absl::StrCat("windows: got ", capture.windows.size(), ", want at most ", capture.job.workers));
  }
  size_t slices = 0;
  for (const auto& [id, tensor] : addition->tensors) slices += tensor->slices.size();
  if (capture.slices.size() != slices) {
    return absl::InvalidArgumentError(absl::StrCat("slices: got ", capture.slices.size(), ", want ", slices));
  }
  if (absl::Status status = MakeSlices(capture.job, std::move(capture.slices), *addition); !status.ok()) return status;
  absl::MutexLock gate(&gate_);
  absl::MutexLock lock(&mutex_);
  AddLocked(capture.job, *std::move(addition));
  for (size_t rank = 0; rank < capture.windows.size(); ++rank) windows_[rank]->Restore(capture.windows[rank]);
  return absl::OkStatus();
}

absl::StatusOr<ShardBuilder> ParameterShard::BeginRestore(JobConfig job, std::vector<OwnedTensor> tensors) const {
  return ShardBuilder::Begin(options_.rank, options_.max_state_bytes, std::move(job), std::move(tensors));
}

absl::Status ParameterShard::Adopt(BuiltShard built) {
  std::vector<std::unique_ptr<PushWindow>> windows;
  while (windows.size() < built.job.workers) windows.push_back(std::make_unique<PushWindow>());
  for (size_t rank = 0; rank < built.windows.size(); ++rank) windows[rank]->Restore(built.windows[rank]);
  absl::MutexLock declaring(&declaring_);
  absl::MutexLock gate(&gate_);
  absl::MutexLock lock(&mutex_);
  if (!job_.name.empty()) {
    return WithReason(v1::ERROR_REASON_WRONG_JOB, absl::FailedPreconditionError("the shard already holds a job"));
  }
  job_ = std::move(built.job);
  catalog_ = std::move(built.catalog);
  windows_ = std::move(windows);
  return absl::OkStatus();
}

void ParameterShard::NoteRecovery(const ShardRecovery& recovery) {
  absl::MutexLock lock(&mutex_);
  recovery_ = recovery;
  may_have_lost_ = recovery.may_have_lost;
}

void ParameterShard::ResumeWindowsLocked(absl::Span<const internal::v1::WindowState> windows) {
  for (size_t rank = 0; rank < std::min(windows.size(), windows_.size()); ++rank) {
    // A window that already has pushes belongs to the resumed job.
    if (windows_[rank]->count().incarnation == 0) windows_[rank]->Restore(windows[rank]);
  }
}

}  // namespace ballast
