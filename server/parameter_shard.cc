// SPDX-License-Identifier: Apache-2.0
#include "server/parameter_shard.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/policy_config.h"
#include "common/shard_map.h"
#include "common/tensor_spec.h"
#include "common/wire/limits.h"
#include "google/protobuf/util/message_differencer.h"

namespace ballast {
namespace {

constexpr uint32_t kMaxWorkers = 4096;

// Of the slices in one message: those of 4 MiB of fp32.
constexpr uint64_t kMaxMessageElements = kMaxMessageBytes / sizeof(float);

std::string Describe(const Slice& slice) {
  return absl::StrCat("\"", slice.tensor(), "\" slice ", slice.range().index());
}

void RaiseTo(std::atomic<uint64_t>& most, uint64_t value) {
  uint64_t seen = most.load(std::memory_order_relaxed);
  while (seen < value && !most.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

ParameterShard::ParameterShard(Options options, const Clock* clock)
    : options_(options), clock_(clock), started_(clock->Now()), waits_(clock) {}

absl::Status ParameterShard::CheckTermsLocked(const JobTerms& job) const {
  if (job_.name.empty()) return absl::OkStatus();
  if (job.name != job_.name) {
    return absl::FailedPreconditionError(
        absl::StrCat("this shard holds job \"", job_.name, "\", got \"", job.name, "\""));
  }
  if (job.workers != job_.workers) {
    return absl::FailedPreconditionError(
        absl::StrCat("job \"", job_.name, "\" was declared with ", job_.workers, " workers, got ", job.workers));
  }
  if (google::protobuf::util::MessageDifferencer::Equals(job.policy, job_.policy)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("job \"", job_.name, "\" was declared with policy ",
                                                    job_.policy.ShortDebugString(), ", got ",
                                                    job.policy.ShortDebugString()));
}

absl::Status ParameterShard::CutWhole(std::vector<OwnedTensor>& tensors) const {
  uint64_t bytes = 0;
  for (OwnedTensor& tensor : tensors) {
    if (absl::Status status = ValidateTensorSpec(tensor.spec); !status.ok()) return status;
    if (!tensor.slices.empty()) continue;
    const uint64_t elements = CountElements(tensor.spec);
    bytes += elements * sizeof(float);
    // Refuse what cannot fit before a list of its slices is made.
    if (bytes > options_.max_state_bytes) {
      return absl::FailedPreconditionError(absl::StrCat("tensor \"", tensor.spec.name(), "\": this shard would hold ",
                                                        bytes, " bytes, at most ", options_.max_state_bytes,
                                                        " are allowed"));
    }
    tensor.slices = CutIntoSlices(elements);
  }
  return absl::OkStatus();
}

absl::Status ParameterShard::CheckSlices(OwnedTensor& tensor) {
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

absl::StatusOr<ParameterShard::Addition> ParameterShard::PlanLocked(std::vector<OwnedTensor>& tensors) const {
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
        return absl::FailedPreconditionError(
            absl::StrCat("tensor \"", tensor.spec.name(), "\" was declared before with other slices"));
      }
      continue;
    }
    if (same_name != names.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", tensor.spec.name(), "\" stands in the message twice"));
    }
    absl::StatusOr<std::unique_ptr<Optimizer>> optimizer = MakeOptimizer(tensor.spec.optimizer());
    if (!optimizer.ok()) return optimizer.status();
    for (const v1::SliceRange& slice : tensor.slices) {
      addition.bytes += slice.elements() * sizeof(float) * (1 + (*optimizer)->slots());
    }
    if (state_bytes_ + addition.bytes > options_.max_state_bytes) {
      return absl::FailedPreconditionError(absl::StrCat("tensor \"", tensor.spec.name(), "\": this shard would hold ",
                                                        state_bytes_ + addition.bytes, " bytes, at most ",
                                                        options_.max_state_bytes, " are allowed"));
    }
    names.emplace(tensor.spec.name(), tensor.spec.id());
    if (!ids.insert(tensor.spec.id()).second) {
      return absl::InvalidArgumentError(absl::StrCat("tensor id ", tensor.spec.id(), " stands in the message twice"));
    }
    addition.tensors.emplace_back(tensor.spec.id(),
                                  std::make_unique<Tensor>(Tensor{tensor.spec, *std::move(optimizer), tensor.slices}));
  }
  return addition;
}

absl::StatusOr<std::vector<OwnedTensor>> ParameterShard::Declare(const JobTerms& job,
                                                                 std::vector<OwnedTensor> tensors) {
  if (absl::Status status = ValidateJobName(job.name); !status.ok()) return status;
  if (job.workers < 1 || job.workers > kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat("workers: got ", job.workers, ", want 1 to ", kMaxWorkers));
  }
  if (absl::Status status = ValidatePolicy(job.policy, job.workers); !status.ok()) return status;
  if (absl::Status status = CutWhole(tensors); !status.ok()) return status;
  for (OwnedTensor& tensor : tensors) {
    if (absl::Status status = CheckSlices(tensor); !status.ok()) return status;
  }
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  if (absl::Status status = CheckTermsLocked(job); !status.ok()) return status;
  absl::StatusOr<Addition> addition = PlanLocked(tensors);
  if (!addition.ok()) return addition.status();
  job_ = job;
  while (windows_.size() < job.workers) windows_.push_back(std::make_unique<PushWindow>());
  state_bytes_ += addition->bytes;
  for (auto& [id, tensor] : addition->tensors) {
    for (const v1::SliceRange& range : tensor->slices) {
      slices_[{id, range.index()}] = std::make_unique<Slice>(
          tensor->spec.name(), range, std::make_unique<SliceWeights>(tensor->spec, range, tensor->optimizer.get()),
          *MakeSlicePolicy(job.policy, job.workers));
    }
    tensors_[id] = std::move(tensor);
  }
  return tensors;
}

absl::Status ParameterShard::closed() const {
  absl::ReaderMutexLock lock(&mutex_);
  return closed_;
}

absl::Status ParameterShard::CheckJob(absl::string_view job) const {
  absl::ReaderMutexLock lock(&mutex_);
  return CheckJobLocked(job);
}

std::string ParameterShard::job_name() const {
  absl::ReaderMutexLock lock(&mutex_);
  return job_.name;
}

absl::Status ParameterShard::CheckJobLocked(absl::string_view job) const {
  if (job_.name.empty()) return absl::FailedPreconditionError("no tensor has been declared on this shard");
  if (job == job_.name) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("this shard holds job \"", job_.name, "\", got \"", job, "\""));
}

absl::StatusOr<Slice*> ParameterShard::FindLocked(SliceKey key) const {
  const auto slice = slices_.find(key);
  if (slice != slices_.end()) return slice->second.get();
  const auto tensor = tensors_.find(key.tensor_id);
  if (tensor == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat("shard ", options_.rank, ": tensor ", key.tensor_id, " is not declared"));
  }
  return absl::NotFoundError(absl::StrCat("shard ", options_.rank, ": slice ", key.slice_index, " of \"",
                                          tensor->second->spec.name(), "\" is not here"));
}

absl::StatusOr<std::vector<Slice*>> ParameterShard::FindAll(absl::string_view job,
                                                            absl::Span<const SliceKey> keys) const {
  absl::ReaderMutexLock lock(&mutex_);
  if (absl::Status status = CheckJobLocked(job); !status.ok()) return status;
  std::vector<Slice*> slices;
  slices.reserve(keys.size());
  for (SliceKey key : keys) {
    absl::StatusOr<Slice*> slice = FindLocked(key);
    if (!slice.ok()) return slice.status();
    slices.push_back(*slice);
  }
  return slices;
}

absl::StatusOr<PushWindow*> ParameterShard::WindowOf(uint32_t worker) const {
  absl::ReaderMutexLock lock(&mutex_);
  if (worker < windows_.size()) return windows_[worker].get();
  return absl::InvalidArgumentError(
      absl::StrCat("worker: got rank ", worker, ", want below the job's ", windows_.size(), " workers"));
}

absl::StatusOr<Gradient> ParameterShard::CheckGradient(const PushTicket& push, const GradientView& view,
                                                       const Slice& slice) const {
  const bool nothing = view.payload.empty() && push.examples == 0;
  if (nothing) return Gradient();
  const absl::StatusOr<const Codec*> codec = FindCodec(view.encoding);
  absl::StatusOr<Gradient> gradient =
      codec.ok() ? Gradient::Open(**codec, view.payload, slice.range().elements()) : codec.status();
  if (gradient.ok()) return gradient;
  return absl::InvalidArgumentError(absl::StrCat("shard ", options_.rank, ": gradient of ", Describe(slice),
                                                 codec.ok() ? " " : ": ", gradient.status().message()));
}

absl::StatusOr<std::vector<ParameterShard::CheckedGradient>> ParameterShard::CheckPush(
    absl::string_view job, const PushTicket& push, absl::Span<const GradientView> gradients) const {
  if (push.incarnation < 1 || push.sequence < 1) {
    return absl::InvalidArgumentError(absl::StrCat("push: got incarnation ", push.incarnation, " and sequence ",
                                                   push.sequence, ", want both from 1"));
  }
  std::vector<SliceKey> keys;
  keys.reserve(gradients.size());
  for (const GradientView& gradient : gradients) keys.push_back(gradient.key);
  bool accept_non_finite = false;
  {
    absl::ReaderMutexLock lock(&mutex_);
    if (!closed_.ok()) return closed_;
    accept_non_finite = job_.policy.accept_non_finite();
  }
  absl::StatusOr<std::vector<Slice*>> slices = FindAll(job, keys);
  if (!slices.ok()) return slices.status();
  std::vector<CheckedGradient> checked;
  checked.reserve(gradients.size());
  uint64_t elements = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    Slice* slice = (*slices)[i];
    // However small its payload, a gradient costs the work of its elements.
    elements += slice->range().elements();
    if (elements > kMaxMessageElements) {
      return absl::InvalidArgumentError(absl::StrCat("shard ", options_.rank, ": a message's slices have more than ",
                                                     kMaxMessageElements, " elements; send fewer in one message"));
    }
    absl::StatusOr<Gradient> gradient = CheckGradient(push, gradients[i], *slice);
    if (!gradient.ok()) return gradient.status();
    if (push.examples > 0 && !accept_non_finite && !gradient->AllFinite()) {
      return absl::InvalidArgumentError(absl::StrCat("shard ", options_.rank, ": gradient of ", Describe(*slice),
                                                     " by worker ", push.worker, " at step ", push.step,
                                                     " has NaN or infinity, want finite numbers"));
    }
    checked.push_back({slice, gradients[i].version, *std::move(gradient)});
  }
  return checked;
}

PushOutcome ParameterShard::Apply(const PushTicket& push, absl::Span<const CheckedGradient> gradients) {
  PushOutcome outcome;
  std::vector<WaitRoom::Ticket> released;
  for (const CheckedGradient& checked : gradients) {
    const Slice::Applied applied =
        checked.slice->Offer({push.worker, push.step, push.examples, checked.version, checked.gradient});
    switch (applied.verdict) {
      case Verdict::kApplied:
        ++outcome.applied;
        staleness_.Add(applied.staleness);
        break;
      case Verdict::kKept:
        ++outcome.kept;
        break;
      case Verdict::kDropped:
        ++outcome.dropped;
        break;
    }
    outcome.max_staleness = std::max(outcome.max_staleness, applied.staleness);
    outcome.learning_rate = applied.learning_rate;
    released.insert(released.end(), applied.released.begin(), applied.released.end());
  }
  updates_ += outcome.applied;
  dropped_ += outcome.dropped;
  RaiseTo(max_staleness_, outcome.max_staleness);
  for (WaitRoom::Ticket ticket : released) waits_.Arrive(ticket);
  return outcome;
}

absl::StatusOr<PushOutcome> ParameterShard::Push(absl::string_view job, const PushTicket& push,
                                                 absl::Span<const GradientView> gradients) {
  const absl::StatusOr<std::vector<CheckedGradient>> checked = CheckPush(job, push, gradients);
  if (!checked.ok()) return checked.status();
  absl::StatusOr<PushWindow*> window = WindowOf(push.worker);
  if (!window.ok()) return window.status();
  for (const auto& [slice, version, gradient] : *checked) {
    if (absl::Status status = slice->CheckStep(push.step); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("shard ", options_.rank, ": ", Describe(*slice), ": worker ",
                                                      push.worker, ": ", status.message()));
    }
  }
  absl::StatusOr<PushWindow::Begun> begun = (*window)->Begin(push.incarnation, push.sequence);
  if (!begun.ok()) {
    return absl::Status(begun.status().code(), absl::StrCat("shard ", options_.rank, ": worker ", push.worker, ": ",
                                                            begun.status().message()));
  }
  ++pushes_;
  if (begun->start == PushWindow::Start::kDuplicate) {
    ++duplicates_;
    begun->outcome.duplicate = true;
    return begun->outcome;
  }
  const PushOutcome outcome = Apply(push, *checked);
  (*window)->Finish(push.incarnation, push.sequence, outcome);
  return outcome;
}

std::string ParameterShard::ExplainWait(const PullTerms& pull, absl::Span<Slice* const> slices) const {
  std::set<uint32_t> missing;
  const Slice* first = nullptr;
  for (const Slice* slice : slices) {
    const std::vector<uint32_t> ranks = slice->Missing(pull);
    if (!ranks.empty() && first == nullptr) first = slice;
    missing.insert(ranks.begin(), ranks.end());
  }
  if (first == nullptr) return absl::StrCat("shard ", options_.rank, ": the wait for step ", pull.step, " ran out");
  return absl::StrCat("shard ", options_.rank, ": pull of ", Describe(*first), " at step ", pull.step,
                      " waits for the gradient of worker ", absl::StrJoin(missing, ", "));
}

WaitRoom::Ticket ParameterShard::AwaitPull(absl::string_view job, const PullTerms& pull, std::vector<SliceKey> keys,
                                           absl::Duration wait, WaitRoom::Done done) {
  absl::StatusOr<std::vector<Slice*>> found = FindAll(job, keys);
  if (!found.ok()) {
    done(found.status());
    return WaitRoom::kNoTicket;
  }
  ++pulls_;
  std::vector<Slice*> slices = *std::move(found);
  const bool ready = std::all_of(slices.begin(), slices.end(), [&](Slice* slice) { return slice->MayPull(pull); });
  if (ready) {
    wait_microseconds_.Add(0);
    done(absl::OkStatus());
    return WaitRoom::kNoTicket;
  }
  const absl::Time start = clock_->Now();
  // One arrival for each slice, and one for having asked them all.
  const WaitRoom::Ticket ticket = waits_.Enter(
      slices.size() + 1, start + wait, [this, pull, slices] { return ExplainWait(pull, slices); },
      [this, start, done = std::move(done)](absl::Status status) {
        wait_microseconds_.Add(std::max<int64_t>(absl::ToInt64Microseconds(clock_->Now() - start), 0));
        done(std::move(status));
      });
  for (Slice* slice : slices) {
    if (slice->MayPullOrRelease(pull, ticket)) waits_.Arrive(ticket);
  }
  waits_.Arrive(ticket);
  // Asked last, so that a Close from here on finds the wait in the room and ends it.
  if (absl::Status status = closed(); !status.ok()) waits_.End(ticket, status);
  return ticket;
}

absl::StatusOr<Slice::Snapshot> ParameterShard::Pull(SliceKey key, std::optional<uint32_t> worker) {
  Slice* slice = nullptr;
  {
    absl::ReaderMutexLock lock(&mutex_);
    absl::StatusOr<Slice*> found = FindLocked(key);
    if (!found.ok()) return found.status();
    slice = *found;
  }
  return slice->Pull(worker);
}

absl::Status ParameterShard::Pause(absl::string_view job, uint32_t worker, uint64_t incarnation) {
  std::vector<Slice*> slices;
  {
    absl::ReaderMutexLock lock(&mutex_);
    if (absl::Status status = CheckJobLocked(job); !status.ok()) return status;
    slices.reserve(slices_.size());
    for (const auto& [key, slice] : slices_) slices.push_back(slice.get());
  }
  absl::StatusOr<PushWindow*> window = WindowOf(worker);
  if (!window.ok()) return window.status();
  if (absl::Status status = (*window)->CheckIncarnation(incarnation); !status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("shard ", options_.rank, ": worker ", worker, ": ", status.message()));
  }
  for (Slice* slice : slices) {
    for (WaitRoom::Ticket ticket : slice->Pause(worker)) waits_.Arrive(ticket);
  }
  return absl::OkStatus();
}

void ParameterShard::Close(absl::Status reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) return;
    closed_ = reason;
  }
  waits_.EndAll(reason);
}

ShardStatus ParameterShard::status() const {
  ShardStatus status;
  {
    absl::ReaderMutexLock lock(&mutex_);
    status.job = job_;
    status.tensors = tensors_.size();
    status.slices = slices_.size();
    status.state_bytes = state_bytes_;
    status.draining = !closed_.ok();
  }
  status.pushes = pushes_;
  status.pulls = pulls_;
  status.updates = updates_;
  status.duplicates = duplicates_;
  status.dropped = dropped_;
  status.waiting = waits_.size();
  status.max_staleness = max_staleness_;
  status.staleness = staleness_.ToProto();
  status.wait_microseconds = wait_microseconds_.ToProto();
  status.uptime_seconds = absl::ToDoubleSeconds(clock_->Now() - started_);
  return status;
}

}  // namespace ballast
