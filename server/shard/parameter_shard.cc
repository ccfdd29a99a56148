// SPDX-License-Identifier: Apache-2.0
#include "server/shard/parameter_shard.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/codecs/payload_reader.h"
#include "common/status/error_reason.h"
#include "server/shard/shard_record.h"

namespace ballast {
namespace {

// Pulls by readers may use 1 / kReaderShare of the memory for waiting pulls.
constexpr uint64_t kReaderShare = 4;

void RaiseTo(std::atomic<uint64_t>& most, uint64_t value) {
  uint64_t seen = most.load(std::memory_order_relaxed);
  while (seen < value && !most.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

// Adds to a timeout error the workers, the step and the tensor that the pull waited for.
absl::Status WithMissing(const absl::Status& status, const PullWait& wait) {
  const Slice& slice = wait.at();
  return WithSubjects(status, {{"workers", absl::StrJoin(slice.Missing(wait.pull()), ",")},
                               {"step", absl::StrCat(wait.pull().step)},
                               {"tensor", slice.tensor()}});
}

// A slice's place in the order of changes; none if the change was not recorded.
std::optional<uint64_t> At(const std::vector<uint64_t>& order, size_t index) {
  if (order.empty()) return std::nullopt;
  return order[index];
}

}  // namespace

ParameterShard::ParameterShard(Options options, const Clock* clock)
    : options_(std::move(options)),
      clock_(clock),
      started_(clock->Now()),
      job_(options_.rank, options_.max_state_bytes),
      worker_waits_(options_.max_wait_bytes - options_.max_wait_bytes / kReaderShare),
      reader_waits_(options_.max_wait_bytes / kReaderShare),
      waits_(clock) {}

absl::StatusOr<std::vector<OwnedTensor>> ParameterShard::DeclareFrom(const std::string& checkpoint,
                                                                     const JobConfig& job,
                                                                     std::vector<OwnedTensor> tensors) {
  // Tensors that fit now still fit when they are added, because only a declaration adds any.
  absl::MutexLock declaring(&declaring_);
  absl::StatusOr<TensorCatalog::Addition> addition = job_.CheckDeclaration(job, tensors);
  if (!addition.ok()) return addition.status();
  if (addition->tensors.empty() && !job_.name().empty()) return tensors;
  const bool keeps_journal = journal_ != nullptr || options_.open_journal;
  if (absl::Status status = job_.CheckDurability(job, options_.keeps_checkpoints, keeps_journal); !status.ok()) {
    return status;
  }
  absl::StatusOr<Resumption> resumption = Load(checkpoint, job, *addition);
  if (!resumption.ok()) return resumption.status();
  if (absl::Status status = job_.MakeSlices(job, std::move(resumption->slices), *addition); !status.ok()) {
    if (absl::Status ended = job_.closed(); !ended.ok()) return ended;
    return Annotate(status, absl::StrCat("shard ", options_.rank, checkpoint.empty() ? "" : ": cannot resume"));
  }
  const absl::StatusOr<ShardJournal*> journal = OpenJournal(job);
  if (!journal.ok()) return journal.status();
  absl::MutexLock gate(&gate_);
  // The shard may have been closed during the load.
  if (absl::Status status = job_.closed(); !status.ok()) return status;
  ShardJournal* const before = journal_.exchange(*journal);
  if (absl::Status status = WriteDeclaration(job, tensors, checkpoint); !status.ok()) {
    journal_ = before;
    return status;
  }
  job_.Add(job, *std::move(addition), resumption->windows);
  return tensors;
}

absl::StatusOr<ShardJournal*> ParameterShard::OpenJournal(const JobConfig& job) const {
  const v1::Durability::Mode mode = job.durability.mode();
  if (journal_ != nullptr || mode == v1::Durability::NONE || mode == v1::Durability::CHECKPOINT) return journal_.load();
  return options_.open_journal(job);
}

absl::Status ParameterShard::WriteDeclaration(const JobConfig& job, absl::Span<const OwnedTensor> tensors,
                                              const std::string& checkpoint) {
  if (journal_ == nullptr || job.durability.mode() == v1::Durability::CHECKPOINT) return absl::OkStatus();
  internal::v1::ShardRecord record;
  *record.mutable_declaration() = EncodeDeclaration(job, tensors);
  record.mutable_declaration()->set_checkpoint(checkpoint);
  return Write(
             record, {}, [] { return true; }, [] {})
      .status();
}

absl::StatusOr<uint64_t> ParameterShard::Write(const internal::v1::ShardRecord& record,
                                               absl::Span<const absl::string_view> behind,
                                               absl::FunctionRef<bool()> admit, absl::FunctionRef<void()> in_order) {
  ShardJournal* const journal = journal_.load();
  if (journal == nullptr) {
    admit();
    return 0;
  }
  const absl::StatusOr<uint64_t> written = journal->Append(record, behind, admit, in_order);
  if (written.ok()) RaiseTo(last_position_, *written);
  return written;
}

absl::StatusOr<uint64_t> ParameterShard::WritePush(const PushTicket& push, absl::Span<const GradientView> gradients,
                                                   absl::Span<const CheckedGradient> checked,
                                                   absl::FunctionRef<bool()> admit, ApplyOrder& order) {
  if (journal_ == nullptr) return Write({}, {}, admit, [] {});
  internal::v1::ShardRecord record;
  internal::v1::LoggedPush* logged = record.mutable_push();
  logged->set_worker(push.worker);
  logged->set_incarnation(push.incarnation);
  logged->set_sequence(push.sequence);
  logged->set_step(push.step);
  logged->set_examples(push.examples);
  if (push.schedule_position.has_value()) logged->set_schedule_position(*push.schedule_position);
  std::vector<absl::string_view> payloads;
  for (const GradientView& gradient : gradients) {
    internal::v1::LoggedPush::Gradient* to = logged->add_gradients();
    to->set_tensor_id(gradient.key.tensor_id);
    to->set_slice_index(gradient.key.slice_index);
    to->set_version(gradient.version);
    to->set_encoding(gradient.encoding);
    to->set_bytes(PayloadBytes(gradient.payload));
    payloads.insert(payloads.end(), gradient.payload.begin(), gradient.payload.end());
  }
  order.reserve(checked.size());
  return Write(record, payloads, admit, [&] {
    for (const CheckedGradient& gradient : checked) order.push_back(gradient.slice->ReserveOrder());
  });
}

PushOutcome ParameterShard::Apply(const PushTicket& push, absl::Span<const CheckedGradient> gradients,
                                  const ApplyOrder& order, std::vector<WaitList::Ticket>& released) {
  PushOutcome outcome;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const CheckedGradient& checked = gradients[i];
    const Slice::Applied applied = checked.slice->Offer(
        {push.worker, push.step, push.examples, checked.version, checked.gradient, push.schedule_position},
        At(order, i));
    switch (applied.disposition) {
      case PushDisposition::kApplied:
        ++outcome.applied;
        staleness_.Add(applied.staleness);
        break;
      case PushDisposition::kBuffered:
        ++outcome.buffered;
        break;
      case PushDisposition::kDropped:
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
  return outcome;
}

absl::Status ParameterShard::AddWorker(const absl::Status& status, uint32_t worker) const {
  return WithSubjects(Annotate(status, absl::StrCat("shard ", options_.rank, ": worker ", worker)),
                      {{"worker", absl::StrCat(worker)}});
}

absl::StatusOr<PushOutcome> ParameterShard::Push(absl::string_view job, const PushTicket& push,
                                                 absl::Span<const GradientView> gradients) {
  const absl::StatusOr<std::vector<CheckedGradient>> checked = job_.CheckPush(job, push, gradients);
  if (!checked.ok()) return checked.status();
  absl::StatusOr<PushWindow*> window = job_.Window(push.worker);
  if (!window.ok()) return window.status();
  const absl::StatusOr<std::vector<SeenSlice>> behind = job_.CheckSteps(push, *checked, may_have_lost_);
  if (!behind.ok()) return behind.status();
  if (!behind->empty()) {
    const absl::StatusOr<uint32_t> caught_up = CatchUp(job, push.worker, push.incarnation, *behind);
    if (!caught_up.ok()) return caught_up.status();
  }
  std::vector<WaitList::Ticket> released;
  absl::StatusOr<PushOutcome> outcome = TakePush(push, gradients, *checked, **window, released);
  // Waits end outside the gate, because their callbacks may take long.
  for (WaitList::Ticket ticket : released) waits_.CountDown(ticket);
  return outcome;
}

absl::StatusOr<PushOutcome> ParameterShard::TakePush(const PushTicket& push, absl::Span<const GradientView> gradients,
                                                     absl::Span<const CheckedGradient> checked, PushWindow& window,
                                                     std::vector<WaitList::Ticket>& released) {
  absl::ReaderMutexLock gate(&gate_);
  absl::StatusOr<PushWindow::Begun> begun = absl::UnknownError("the push window was not consulted");
  // The journal calls this in record order, so no push of an incarnation follows one of a newer incarnation.
  const auto admit = [&] {
    begun = window.Begin(push.incarnation, push.sequence);
    return begun.ok() && begun->start == PushWindow::Start::kNew;
  };
  ApplyOrder order;
  const absl::StatusOr<uint64_t> position = WritePush(push, gradients, checked, admit, order);
  if (!position.ok()) {
    if (begun.ok()) window.Abandon(push.incarnation, push.sequence);
    return Annotate(position.status(), absl::StrCat("shard ", options_.rank, ": log"));
  }
  if (!begun.ok()) return AddWorker(begun.status(), push.worker);
  ++pushes_;
  if (begun->start == PushWindow::Start::kDuplicate) {
    ++duplicates_;
    begun->outcome.duplicate = true;
    return begun->outcome;
  }
  PushOutcome outcome = Apply(push, checked, order, released);
  outcome.position = *position;
  window.Finish(push.incarnation, push.sequence, outcome);
  return outcome;
}

absl::StatusOr<uint32_t> ParameterShard::ReportVersions(absl::string_view job, uint32_t worker, uint64_t incarnation,
                                                        absl::Span<const SeenSlice> seen) {
  if (may_have_lost_) return CatchUp(job, worker, incarnation, seen);
  if (absl::Status status = job_.CheckName(job); !status.ok()) return status;
  const absl::StatusOr<PushWindow*> window = job_.Window(worker);
  if (!window.ok()) return window.status();
  if (absl::Status status = (*window)->CheckIncarnation(incarnation); !status.ok()) {
    return AddWorker(status, worker);
  }
  return 0;
}

absl::StatusOr<uint32_t> ParameterShard::CatchUp(absl::string_view job, uint32_t worker, uint64_t incarnation,
                                                 absl::Span<const SeenSlice> seen) {
  std::vector<SliceKey> keys;
  internal::v1::ShardRecord record;
  internal::v1::LoggedCatchUp* logged = record.mutable_catch_up();
  logged->set_worker(worker);
  logged->set_incarnation(incarnation);
  for (const SeenSlice& slice : seen) {
    keys.push_back(slice.key);
    internal::v1::LoggedCatchUp::Slice* to = logged->add_slices();
    to->set_tensor_id(slice.key.tensor_id);
    to->set_slice_index(slice.key.slice_index);
    to->set_version(slice.version);
    to->set_finished_steps(slice.finished_steps);
  }
  const absl::StatusOr<std::vector<Slice*>> slices = job_.Find(job, keys);
  if (!slices.ok()) return slices.status();
  const absl::StatusOr<PushWindow*> window = job_.Window(worker);
  if (!window.ok()) return window.status();
  std::vector<WaitList::Ticket> released;
  uint32_t raised = 0;
  {
    absl::ReaderMutexLock gate(&gate_);
    absl::Status known;
    const auto admit = [&] {
      known = (*window)->CheckIncarnation(incarnation);
      return known.ok();
    };
    ApplyOrder order;
    const absl::StatusOr<uint64_t> written = Write(record, {}, admit, [&] {
      for (Slice* slice : *slices) order.push_back(slice->ReserveOrder());
    });
    if (!written.ok()) return Annotate(written.status(), absl::StrCat("shard ", options_.rank, ": log"));
    if (!known.ok()) return AddWorker(known, worker);
    for (size_t i = 0; i < seen.size(); ++i) {
      const Slice::CaughtUp caught_up =
          (*slices)[i]->CatchUp(worker, seen[i].version, seen[i].finished_steps, At(order, i));
      if (caught_up.lost_updates > 0) ++raised;
      lost_updates_ += caught_up.lost_updates;
      released.insert(released.end(), caught_up.released.begin(), caught_up.released.end());
    }
  }
  for (WaitList::Ticket ticket : released) waits_.CountDown(ticket);
  return raised;
}

void ParameterShard::AwaitSynced(std::function<void(absl::Status)> done) {
  const uint64_t position = last_position_.load(std::memory_order_acquire);
  ShardJournal* const journal = position > 0 ? journal_.load() : nullptr;
  if (journal == nullptr) return done(absl::OkStatus());
  journal->AwaitSynced(position, std::move(done));
}

void ParameterShard::AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) {
  // Does not take the gate, because a writer may hold it for as long as a disk operation takes.
  ShardJournal* const journal = position > 0 ? journal_.load() : nullptr;
  if (journal == nullptr) return done(absl::OkStatus());
  journal->AwaitDurable(position, std::move(done));
}

std::string ParameterShard::ExplainWait(const PullWait& wait) const {
  const Slice& slice = wait.at();
  const std::string what =
      absl::StrCat("shard ", options_.rank, ": pull of ", slice.Describe(), " at step ", wait.pull().step);
  if (!slice.HasValues()) return absl::StrCat(what, " waits for SetValues to provide the values");
  const std::vector<uint32_t> missing = slice.Missing(wait.pull());
  return absl::StrCat(what, missing.empty()
                                ? " timed out"
                                : absl::StrCat(" waits for the gradient of worker ", absl::StrJoin(missing, ", ")));
}

WaitList::Ticket ParameterShard::AwaitPull(absl::string_view job, const PullQuery& pull,
                                           absl::Span<const SliceKey> keys, absl::Duration wait, bool by_reader,
                                           WaitList::Done done) {
  absl::StatusOr<std::vector<Slice*>> found = job_.CheckPull(job, keys);
  if (!found.ok()) {
    done(found.status());
    return WaitList::kNoTicket;
  }
  ++pulls_;
  const auto first = std::find_if(found->begin(), found->end(), [&](Slice* slice) { return !slice->MayPull(pull); });
  if (first == found->end()) {
    wait_microseconds_.Add(0);
    done(absl::OkStatus());
    return WaitList::kNoTicket;
  }
  absl::StatusOr<ByteBudget::Reservation> room =
      (by_reader ? reader_waits_ : worker_waits_).Reserve(PullWait::BytesOf(keys.size()));
  if (!room.ok()) {
    done(Annotate(room.status(), absl::StrCat("shard ", options_.rank, ": waiting pulls")));
    return WaitList::kNoTicket;
  }
  const absl::Time start = clock_->Now();
  // Shared by the three callbacks, which the wait list keeps and frees together.
  const size_t at = first - found->begin();
  const auto waiting = std::make_shared<PullWait>(pull, *std::move(found), at, *std::move(room));
  const WaitList::Ticket ticket = waits_.Add(
      start + wait, [waiting](WaitList::Ticket own) { return waiting->Release(own); },
      [this, waiting] { return ExplainWait(*waiting); },
      [this, waiting, start, done = std::move(done)](absl::Status status) {
        if (absl::IsDeadlineExceeded(status)) status = WithMissing(status, *waiting);
        waiting->End();
        wait_microseconds_.Add(std::max<int64_t>(absl::ToInt64Microseconds(clock_->Now() - start), 0));
        done(std::move(status));
      });
  waits_.CountDown(ticket);
  // Checked last, so that a later Close finds the wait in the list and ends it.
  if (absl::Status status = job_.closed(); !status.ok()) waits_.End(ticket, status);
  return ticket;
}

absl::StatusOr<PulledValues> ParameterShard::Pull(SliceKey key, std::optional<uint32_t> worker) {
  const absl::StatusOr<Slice*> slice = job_.Find(key);
  if (!slice.ok()) return slice.status();
  return (*slice)->Pull(worker);
}

absl::Status ParameterShard::Pause(absl::string_view job, uint32_t worker, uint64_t incarnation) {
  if (absl::Status status = job_.CheckName(job); !status.ok()) return status;
  absl::StatusOr<PushWindow*> window = job_.Window(worker);
  if (!window.ok()) return window.status();
  std::vector<WaitList::Ticket> released;
  {
    absl::ReaderMutexLock gate(&gate_);
    // Listed under the gate, because a replay pauses all tensors whose declaration was recorded before this pause.
    const std::vector<std::pair<SliceKey, Slice*>> slices = job_.Slices();
    internal::v1::ShardRecord record;
    record.mutable_pause()->set_worker(worker);
    record.mutable_pause()->set_incarnation(incarnation);
    absl::Status known;
    const auto admit = [&] {
      known = (*window)->CheckIncarnation(incarnation);
      return known.ok();
    };
    ApplyOrder order;
    const absl::StatusOr<uint64_t> written = Write(record, {}, admit, [&] {
      for (const auto& [key, slice] : slices) order.push_back(slice->ReserveOrder());
    });
    if (!written.ok()) return Annotate(written.status(), absl::StrCat("shard ", options_.rank, ": log"));
    if (!known.ok()) return AddWorker(known, worker);
    for (size_t i = 0; i < slices.size(); ++i) {
      const std::vector<WaitList::Ticket> tickets = slices[i].second->Pause(worker, At(order, i));
      released.insert(released.end(), tickets.begin(), tickets.end());
    }
  }
  for (WaitList::Ticket ticket : released) waits_.CountDown(ticket);
  return absl::OkStatus();
}

void ParameterShard::Close(absl::Status reason) {
  if (job_.Close(reason)) waits_.EndAll(reason);
}

void ParameterShard::StartJournal(ShardJournal* journal) {
  absl::MutexLock gate(&gate_);
  journal_ = journal;
}

ShardStatus ParameterShard::status() const {
  ShardStatus status{job_.summary()};
  {
    absl::ReaderMutexLock lock(&mutex_);
    status.recovery = recovery_;
  }
  status.lost_updates = lost_updates_;
  status.snapshots = snapshots_;
  status.snapshot_failures = snapshot_failures_;
  status.pushes = pushes_;
  status.pulls = pulls_;
  status.updates = updates_;
  status.duplicates = duplicates_;
  status.dropped = dropped_;
  status.waiting = waits_.size();
  status.wait_bytes = worker_waits_.used() + reader_waits_.used();
  status.wait_bytes_limit = worker_waits_.limit() + reader_waits_.limit();
  status.refused_waits = worker_waits_.refused() + reader_waits_.refused();
  status.max_staleness = max_staleness_;
  status.staleness = staleness_.ToProto();
  status.wait_microseconds = wait_microseconds_.ToProto();
  status.uptime_seconds = absl::ToDoubleSeconds(clock_->Now() - started_);
  return status;
}

}  // namespace ballast
