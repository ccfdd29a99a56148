// SPDX-License-Identifier: Apache-2.0
#include "server/shard/declared_job.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/codecs/codec.h"
#include "common/status/error_reason.h"
#include "common/wire/limits.h"
#include "google/protobuf/util/message_differencer.h"

namespace ballast {
namespace {

using google::protobuf::util::MessageDifferencer;

// Limit on the elements of all slices in one message: 4 MiB of fp32.
constexpr uint64_t kMaxMessageElements = kMaxMessageBytes / sizeof(float);

absl::Status Invalid(absl::string_view message) {
  return WithReason(v1::ERROR_REASON_INVALID_REQUEST, absl::InvalidArgumentError(message));
}

absl::Status Refuse(v1::ErrorReason reason, absl::string_view job, absl::string_view message) {
  return WithReason(reason, absl::FailedPreconditionError(message), {{"job", job}});
}

absl::Status CheckTicket(const PushTicket& push) {
  if (push.incarnation < 1 || push.sequence < 1) {
    return absl::InvalidArgumentError(absl::StrCat("push: got incarnation ", push.incarnation, " and sequence ",
                                                   push.sequence, ", want both from 1"));
  }
  // This form of the comparison also rejects NaN.
  if (push.schedule_position.has_value() && !(*push.schedule_position >= 0 && *push.schedule_position <= 1)) {
    return Invalid(absl::StrCat("push: got schedule_position ", *push.schedule_position, ", want 0 to 1"));
  }
  return absl::OkStatus();
}

}  // namespace

bool DeclaredJob::Close(absl::Status reason) {
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return false;
  closed_ = std::move(reason);
  return true;
}

absl::Status DeclaredJob::closed() const {
  absl::ReaderMutexLock lock(&mutex_);
  return closed_;
}

absl::Status DeclaredJob::CheckConfigLocked(const JobConfig& job) const {
  if (config_.name.empty()) return absl::OkStatus();
  if (absl::Status status = CheckNameLocked(job.name); !status.ok()) return status;
  const std::string declared = absl::StrCat("job \"", config_.name, "\" was declared with ");
  if (job.workers != config_.workers) {
    return Refuse(v1::ERROR_REASON_JOB_DIFFERS, config_.name,
                  absl::StrCat(declared, config_.workers, " workers, got ", job.workers));
  }
  if (!MessageDifferencer::Equals(job.durability, config_.durability)) {
    return Refuse(v1::ERROR_REASON_JOB_DIFFERS, config_.name,
                  absl::StrCat(declared, "durability { ", config_.durability.ShortDebugString(), " }, got { ",
                               job.durability.ShortDebugString(), " }"));
  }
  if (MessageDifferencer::Equals(job.policy, config_.policy)) return absl::OkStatus();
  return Refuse(
      v1::ERROR_REASON_JOB_DIFFERS, config_.name,
      absl::StrCat(declared, "policy ", config_.policy.ShortDebugString(), ", got ", job.policy.ShortDebugString()));
}

absl::StatusOr<TensorCatalog::Addition> DeclaredJob::CheckDeclaration(const JobConfig& job,
                                                                      std::vector<OwnedTensor>& tensors) const {
  if (absl::Status status = ValidateJobConfig(job); !status.ok()) return status;
  absl::ReaderMutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  if (absl::Status status = CheckConfigLocked(job); !status.ok()) return status;
  return catalog_.Check(tensors);
}

absl::Status DeclaredJob::CheckDurability(const JobConfig& job, bool keeps_checkpoints, bool keeps_journal) const {
  const v1::Durability::Mode mode = job.durability.mode();
  const bool checkpoint = mode == v1::Durability::CHECKPOINT;
  if (mode == v1::Durability::NONE || (checkpoint ? keeps_checkpoints : keeps_journal)) return absl::OkStatus();
  return Refuse(v1::ERROR_REASON_NO_STORAGE, job.name,
                absl::StrCat("job \"", job.name, "\" wants durability ", v1::Durability::Mode_Name(mode),
                             ", but shard ", shard_, " has no ",
                             checkpoint ? "checkpoint directory (--checkpoint_dir)" : "state directory (--state_dir)"));
}

absl::Status DeclaredJob::MakeSlices(const JobConfig& job, std::vector<ShardState::SliceEntry> saved,
                                     TensorCatalog::Addition& addition) const {
  TensorCatalog::SavedSlices slices;
  for (ShardState::SliceEntry& slice : saved) {
    slices[slice.key] = {std::move(slice.weights), std::move(slice.policy)};
  }
  return TensorCatalog::MakeSlices(
      job.policy, job.workers, std::move(slices), [this] { return closed(); }, addition);
}

void DeclaredJob::Add(const JobConfig& job, TensorCatalog::Addition addition,
                      absl::Span<const internal::v1::WindowState> windows) {
  absl::MutexLock lock(&mutex_);
  config_ = job;
  catalog_.Add(std::move(addition));
  while (windows_.size() < job.workers) windows_.push_back(std::make_unique<PushWindow>());
  for (size_t rank = 0; rank < std::min(windows.size(), windows_.size()); ++rank) {
    // A window that already has pushes belongs to the resumed job.
    if (windows_[rank]->count().incarnation == 0) windows_[rank]->Restore(windows[rank]);
  }
}

DeclaredJob::Windows DeclaredJob::MakeWindows(uint32_t workers, absl::Span<const internal::v1::WindowState> saved) {
  Windows windows;
  while (windows.size() < workers) windows.push_back(std::make_unique<PushWindow>());
  for (size_t rank = 0; rank < saved.size(); ++rank) windows[rank]->Restore(saved[rank]);
  return windows;
}

absl::Status DeclaredJob::Adopt(JobConfig job, TensorCatalog catalog, Windows windows) {
  absl::MutexLock lock(&mutex_);
  if (!config_.name.empty()) {
    return WithReason(v1::ERROR_REASON_WRONG_JOB, absl::FailedPreconditionError("the shard already holds a job"));
  }
  config_ = std::move(job);
  catalog_ = std::move(catalog);
  windows_ = std::move(windows);
  return absl::OkStatus();
}

absl::Status DeclaredJob::CheckNameLocked(absl::string_view job) const {
  if (config_.name.empty()) {
    return WithReason(v1::ERROR_REASON_NO_JOB,
                      absl::FailedPreconditionError("no tensor has been declared on this shard"));
  }
  if (job == config_.name) return absl::OkStatus();
  return Refuse(v1::ERROR_REASON_WRONG_JOB, config_.name,
                absl::StrCat("this shard holds job \"", config_.name, "\", got \"", job, "\""));
}

absl::Status DeclaredJob::CheckName(absl::string_view job) const {
  absl::ReaderMutexLock lock(&mutex_);
  return CheckNameLocked(job);
}

std::string DeclaredJob::name() const {
  absl::ReaderMutexLock lock(&mutex_);
  return config_.name;
}

JobConfig DeclaredJob::config() const {
  absl::ReaderMutexLock lock(&mutex_);
  return config_;
}

absl::StatusOr<ChangeSource> DeclaredJob::FindSource(absl::string_view job, uint32_t worker,
                                                     uint64_t incarnation) const {
  absl::ReaderMutexLock lock(&mutex_);
  if (absl::Status status = CheckNameLocked(job); !status.ok()) return status;
  if (worker < windows_.size()) return ChangeSource{worker, incarnation, windows_[worker].get()};
  return absl::InvalidArgumentError(
      absl::StrCat("worker: got rank ", worker, ", want below the job's ", windows_.size(), " workers"));
}

absl::StatusOr<std::vector<Slice*>> DeclaredJob::FindLocked(absl::string_view job,
                                                            absl::Span<const SliceKey> keys) const {
  if (absl::Status status = CheckNameLocked(job); !status.ok()) return status;
  std::vector<Slice*> slices;
  slices.reserve(keys.size());
  for (SliceKey key : keys) {
    absl::StatusOr<Slice*> slice = catalog_.Find(key);
    if (!slice.ok()) return slice.status();
    slices.push_back(*slice);
  }
  return slices;
}

absl::StatusOr<std::vector<Slice*>> DeclaredJob::Find(absl::string_view job, absl::Span<const SliceKey> keys) const {
  absl::ReaderMutexLock lock(&mutex_);
  return FindLocked(job, keys);
}

absl::StatusOr<Slice*> DeclaredJob::Find(SliceKey key) const {
  absl::ReaderMutexLock lock(&mutex_);
  return catalog_.Find(key);
}

absl::StatusOr<DeclaredJob::Targets> DeclaredJob::FindTargets(absl::string_view job,
                                                              absl::Span<const SliceKey> keys) const {
  absl::ReaderMutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  absl::StatusOr<std::vector<Slice*>> slices = FindLocked(job, keys);
  if (!slices.ok()) return slices.status();
  return Targets{*std::move(slices), config_.policy.accept_non_finite()};
}

std::string DeclaredJob::TooManyElements(absl::string_view verb) const {
  return absl::StrCat("shard ", shard_, ": a message's slices have more than ", kMaxMessageElements, " elements; ",
                      verb, " fewer in one message");
}

absl::StatusOr<Gradient> DeclaredJob::CheckGradient(const PushTicket& push, const GradientView& view,
                                                    const Slice& slice) const {
  const bool nothing = view.payload.empty() && push.examples == 0;
  if (nothing) return Gradient();
  const absl::StatusOr<const Codec*> codec = FindCodec(view.encoding);
  absl::StatusOr<Gradient> gradient =
      codec.ok() ? Gradient::Open(**codec, view.payload, slice.range().elements()) : codec.status();
  if (gradient.ok()) return gradient;
  return absl::InvalidArgumentError(absl::StrCat("shard ", shard_, ": gradient of ", slice.Describe(),
                                                 codec.ok() ? " " : ": ", gradient.status().message()));
}

absl::StatusOr<bool> DeclaredJob::CheckTicket(absl::string_view job, const PushTicket& push) const {
  if (absl::Status status = ballast::CheckTicket(push); !status.ok()) return status;
  const absl::StatusOr<Targets> targets = FindTargets(job, {});
  if (!targets.ok()) return targets.status();
  return targets->accept_non_finite;
}

absl::StatusOr<CheckedPush> DeclaredJob::CheckPush(absl::string_view job, const PushTicket& push,
                                                   absl::Span<const GradientView> gradients) const {
  if (absl::Status status = ballast::CheckTicket(push); !status.ok()) return status;
  CheckedPush checked;
  checked.keys.reserve(gradients.size());
  for (const GradientView& gradient : gradients) checked.keys.push_back(gradient.key);
  absl::StatusOr<Targets> targets = FindTargets(job, checked.keys);
  if (!targets.ok()) return targets.status();
  checked.slices = std::move(targets->slices);
  checked.gradients.reserve(gradients.size());
  uint64_t elements = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Slice* slice = checked.slices[i];
    // The work to apply a gradient depends on its elements, not on the size of its payload.
    elements += slice->range().elements();
    if (elements > kMaxMessageElements) return absl::InvalidArgumentError(TooManyElements("send"));
    absl::StatusOr<Gradient> gradient = CheckGradient(push, gradients[i], *slice);
    if (!gradient.ok()) return gradient.status();
    const bool checks = push.examples > 0 && !targets->accept_non_finite;
    const bool seen_finite = gradient->is_plain() && gradients[i].has_finite_floats;
    if (checks && !seen_finite && !gradient->AllFinite()) {
      return absl::InvalidArgumentError(absl::StrCat("shard ", shard_, ": gradient of ", slice->Describe(),
                                                     " by worker ", push.worker, " at step ", push.step,
                                                     " has NaN or infinity, want finite numbers"));
    }
    gradient->set_message(gradients[i].message);
    checked.gradients.push_back(*std::move(gradient));
  }
  return checked;
}

absl::StatusOr<std::vector<CheckedValues>> DeclaredJob::CheckValues(absl::string_view job,
                                                                    absl::Span<const ValueView> values) const {
  std::vector<SliceKey> keys;
  keys.reserve(values.size());
  absl::flat_hash_set<SliceKey> seen;
  for (const ValueView& view : values) {
    keys.push_back(view.key);
    if (seen.insert(view.key).second) continue;
    return Invalid(absl::StrCat("shard ", shard_, ": values of tensor ", view.key.tensor_id, " slice ",
                                view.key.slice_index, " appear twice in the message"));
  }
  const absl::StatusOr<Targets> targets = FindTargets(job, keys);
  if (!targets.ok()) return targets.status();
  std::vector<CheckedValues> checked;
  checked.reserve(values.size());
  uint64_t elements = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    Slice* const slice = targets->slices[i];
    elements += slice->range().elements();
    if (elements > kMaxMessageElements) return Invalid(TooManyElements("send"));
    absl::StatusOr<DecodedValues> decoded =
        DecodeValues(values[i], slice->range().elements(), targets->accept_non_finite);
    if (!decoded.ok()) {
      return Annotate(decoded.status(), absl::StrCat("shard ", shard_, ": values of ", slice->Describe()));
    }
    checked.push_back({slice, std::move(decoded->values), decoded->checksum});
  }
  return checked;
}

absl::Status DeclaredJob::CheckPull(absl::Span<const SliceKey> keys) const {
  absl::flat_hash_set<SliceKey> seen;
  seen.reserve(keys.size());
  for (SliceKey key : keys) {
    if (seen.insert(key).second) continue;
    return absl::InvalidArgumentError(absl::StrCat("shard ", shard_, ": pull: got slice ", key.slice_index,
                                                   " of tensor ", key.tensor_id, " twice, want each slice once"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Slice*>> DeclaredJob::CheckPull(absl::string_view job,
                                                           absl::Span<const SliceKey> keys) const {
  absl::StatusOr<std::vector<Slice*>> slices = Find(job, keys);
  if (!slices.ok()) return slices;
  if (absl::Status status = CheckPull(keys); !status.ok()) return status;
  uint64_t elements = 0;
  for (const Slice* slice : *slices) elements += slice->range().elements();
  if (elements > kMaxMessageElements) return absl::InvalidArgumentError(TooManyElements("ask for"));
  return slices;
}

absl::StatusOr<std::vector<SeenSlice>> DeclaredJob::CheckSteps(const PushTicket& push, const CheckedPush& checked,
                                                               bool may_have_lost) const {
  std::vector<SeenSlice> behind;
  for (size_t i = 0; i < checked.slices.size(); ++i) {
    const Slice& slice = *checked.slices[i];
    const absl::Status status = slice.CheckStep(push.step);
    if (status.ok()) continue;
    // A worker reaches a step only after it has seen the previous update, so this shard lost updates that it saw.
    const uint64_t least = push.step - std::min(push.step, SliceWeights::kMostSkipped);
    if (may_have_lost && slice.CheckStep(least).ok()) {
      behind.push_back({checked.keys[i], push.step, push.step});
      continue;
    }
    return WithSubjects(
        Annotate(status, absl::StrCat("shard ", shard_, ": ", slice.Describe(), ": worker ", push.worker)),
        {{"tensor", slice.tensor()}, {"worker", absl::StrCat(push.worker)}});
  }
  return behind;
}

DeclaredJob::Summary DeclaredJob::summary() const {
  absl::ReaderMutexLock lock(&mutex_);
  Summary summary{
      config_, catalog_.tensor_count(), catalog_.slice_count(), catalog_.bytes(), catalog_.memory(), {}, !closed_.ok()};
  for (const auto& window : windows_) summary.workers_pushes.push_back(window->count());
  return summary;
}

ShardState DeclaredJob::Outline() const {
  absl::ReaderMutexLock lock(&mutex_);
  ShardState outline;
  outline.job = config_;
  outline.tensors = catalog_.Tensors();
  for (const auto& window : windows_) outline.windows.push_back(window->Save());
  return outline;
}

std::vector<std::pair<SliceKey, Slice*>> DeclaredJob::Slices() const {
  absl::ReaderMutexLock lock(&mutex_);
  return catalog_.Slices();
}

}  // namespace ballast
