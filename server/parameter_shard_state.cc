// SPDX-License-Identifier: Apache-2.0
// Of a ParameterShard: what it is captured as, and begins with.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/parameter_shard.h"

namespace ballast {

ShardCapture ParameterShard::Capture(absl::FunctionRef<void()> at_rest) {
  absl::MutexLock gate(&gate_);
  at_rest();
  ShardCapture capture;
  std::vector<std::pair<SliceKey, Slice*>> slices;
  {
    absl::ReaderMutexLock lock(&mutex_);
    capture.job = job_;
    capture.tensors = catalog_.Tensors();
    for (const auto& window : windows_) capture.windows.push_back(window->Save());
    slices = catalog_.Slices();
  }
  capture.slices.reserve(slices.size());
  for (const auto& [key, slice] : slices) {
    Slice::Capture shared = slice->Share();
    capture.slices.push_back({key, std::move(shared.weights), std::move(shared.policy)});
  }
  return capture;
}

absl::Status ParameterShard::Restore(ShardCapture capture) {
  if (absl::Status status = ValidateTerms(capture.job); !status.ok()) return status;
  absl::MutexLock gate(&gate_);
  absl::MutexLock lock(&mutex_);
  if (!job_.name.empty()) return absl::FailedPreconditionError("the shard holds a job already");
  absl::StatusOr<TensorCatalog::Addition> addition = catalog_.Check(capture.tensors);
  if (!addition.ok()) return addition.status();
  if (capture.windows.size() > capture.job.workers) {
    return absl::InvalidArgumentError(
        absl::StrCat("windows: got ", capture.windows.size(), ", want at most ", capture.job.workers));
  }
  AddLocked(capture.job, *std::move(addition));
  if (capture.slices.size() != catalog_.slice_count()) {
    return absl::InvalidArgumentError(
        absl::StrCat("slices: got ", capture.slices.size(), ", want ", catalog_.slice_count()));
  }
  if (absl::Status status = RestoreSlicesLocked(std::move(capture.slices)); !status.ok()) return status;
  for (size_t rank = 0; rank < capture.windows.size(); ++rank) windows_[rank]->Restore(capture.windows[rank]);
  return absl::OkStatus();
}

absl::Status ParameterShard::RestoreSlicesLocked(std::vector<ShardCapture::SliceCapture> slices) {
  for (ShardCapture::SliceCapture& from : slices) {
    const absl::StatusOr<Slice*> slice = catalog_.Find(from.key);
    if (!slice.ok()) return slice.status();
    if (absl::Status status = (*slice)->Restore({std::move(from.weights), from.policy}); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ParameterShard::ResumeLocked(Resumption resumption) {
  if (absl::Status status = RestoreSlicesLocked(std::move(resumption.slices)); !status.ok()) {
    // Half of a model must not be trained on.
    closed_ = absl::Status(status.code(), absl::StrCat("shard ", options_.rank, ": cannot resume: ", status.message()));
    return closed_;
  }
  for (size_t rank = 0; rank < std::min(resumption.windows.size(), windows_.size()); ++rank) {
    // What was pushed before this declaration is the resumed job's own.
    if (windows_[rank]->count().incarnation == 0) windows_[rank]->Restore(resumption.windows[rank]);
  }
  return absl::OkStatus();
}

}  // namespace ballast
