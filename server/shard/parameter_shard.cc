// SPDX-License-Identifier: Apache-2.0
#include "server/shard/parameter_shard.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/codecs/payload_reader.h"
#include "common/flight/flight_dump.h"
#include "common/status/error_reason.h"
#include "common/tables/table_spec.h"
#include "server/shard/shard_record.h"

namespace ballast {
namespace {

// Pulls by readers may use 1 / kReaderShare of the memory for waiting pulls.
constexpr uint64_t kReaderShare = 4;

void Append(const std::vector<WaitList::Ticket>& tickets, ChangeSequencer::Released& released) {
  released.insert(released.end(), tickets.begin(), tickets.end());
}

MessagePayloads PayloadsOf(absl::Span<const GradientView> views, absl::Span<const Gradient> gradients) {
  MessagePayloads payloads;
  for (size_t i = 0; i < views.size(); ++i) {
    payloads.Add(views[i].encoding, PayloadBytes(views[i].payload), gradients[i].size());
  }
  return payloads;
}

}  // namespace

void ParameterShard::Counts::AddWork(absl::Duration took, absl::Duration waited, uint64_t bytes) {
  // The machine's clock may have been set back.
  const absl::Duration applying = std::max(took - waited, absl::ZeroDuration());
  apply_nanoseconds.fetch_add(absl::ToInt64Nanoseconds(applying), std::memory_order_relaxed);
  lock_wait_nanoseconds.fetch_add(absl::ToInt64Nanoseconds(waited), std::memory_order_relaxed);
  applied_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

ParameterShard::ParameterShard(Options options, const Clock* clock)
    : options_(std::move(options)),
      clock_(clock),
      started_(clock->Now()),
      job_(options_.rank, options_.max_state_bytes),
      tables_(options_.rank, options_.max_state_bytes),
      changes_(options_.rank, &waits_),
      worker_waits_(options_.max_wait_bytes - options_.max_wait_bytes / kReaderShare),
      reader_waits_(options_.max_wait_bytes / kReaderShare),
      waits_(clock) {}

PushOutcome ParameterShard::Apply(const PushTicket& push, absl::Span<const GradientView> gradients,
                                  const CheckedPush& checked, const ChangeSequencer::Places& places,
                                  ChangeSequencer::Released& released) {
  ++counts_.pushes;
  const absl::Time began = clock_->Now();
  absl::Duration waited;
  uint64_t bytes = 0;
  PushOutcome outcome;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Slice::Applied applied =
        checked.slices[i]->Offer(push, gradients[i].version, checked.gradients[i], places[i]);
    switch (applied.disposition) {
      case PushDisposition::kApplied:
        ++outcome.applied;
        bytes += checked.slices[i]->range().elements() * sizeof(float);
        counts_.staleness.Add(applied.staleness);
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
    waited += applied.waited;
    Append(applied.released, released);
  }
  counts_.AddWork(clock_->Now() - began, waited, bytes);
  counts_.dropped += outcome.dropped;
  return outcome;
}

absl::StatusOr<PushOutcome> ParameterShard::Push(absl::string_view job, const PushTicket& push,
                                                 absl::Span<const GradientView> gradients, PayloadCounts* received) {
  const SliceKey first = gradients.empty() ? SliceKey{FlightEvent::kNone, 0} : gradients[0].key;
  FlightScope flight({.activity = FlightActivity::kPush,
                      .peer = push.worker,
                      .step = push.step,
                      .tensor = first.tensor_id,
                      .slice = first.slice_index,
                      .amount = gradients.size()});
  const absl::StatusOr<CheckedPush> checked = job_.CheckPush(job, push, gradients);
  if (!checked.ok()) return checked.status();
  const absl::StatusOr<ChangeSource> source = job_.FindSource(job, push.worker, push.incarnation);
  if (!source.ok()) return source.status();
  const absl::StatusOr<std::vector<SeenSlice>> behind = job_.CheckSteps(push, *checked, may_have_lost_);
  if (!behind.ok()) return behind.status();
  if (!behind->empty()) {
    const absl::StatusOr<uint32_t> caught_up = CatchUp(job, push.worker, push.incarnation, *behind);
    if (!caught_up.ok()) return caught_up.status();
  }
  const absl::StatusOr<PushOutcome> outcome = changes_.Push(
      *source, push.sequence,
      [&] { return changes_.journal() == nullptr ? JournalEntry() : EncodePush(push, gradients); },
      [&](size_t i) { return checked->slices[i]->ReserveOrder(); },
      [&](const auto& places, auto& released) { return Apply(push, gradients, *checked, places, released); });
  flight.End(outcome.status());
  if (outcome.ok() && received != nullptr) received->Add(PayloadsOf(gradients, checked->gradients));
  if (outcome.ok() && outcome->duplicate) {
    ++counts_.pushes;
    ++counts_.duplicates;
  }
  return outcome;
}

absl::StatusOr<PushOutcome> ParameterShard::PushRows(absl::string_view job, PushTicket push, uint32_t messages_of_step,
                                                     absl::Span<const RowGradientsView> gradients,
                                                     PayloadCounts* received) {
  FlightScope flight(
      {.activity = FlightActivity::kPushRows, .peer = push.worker, .step = push.step, .amount = gradients.size()});
  const absl::StatusOr<bool> accept_non_finite = job_.CheckTicket(job, push);
  if (!accept_non_finite.ok()) return accept_non_finite.status();
  const absl::StatusOr<ChangeSource> source = job_.FindSource(job, push.worker, push.incarnation);
  if (!source.ok()) return source.status();
  absl::ReaderMutexLock same_tables(&adding_tables_);
  // A push that is replayed has the time at which it came.
  if (push.unix_seconds == 0 && tables_.NeedTime()) push.unix_seconds = absl::ToUnixSeconds(clock_->Now());
  absl::StatusOr<CheckedRows> checked = tables_.CheckPush(push, messages_of_step, gradients, *accept_non_finite);
  if (!checked.ok()) return checked.status();
  const absl::StatusOr<bool> behind = tables_.CheckSteps(push, *checked, may_have_lost_);
  if (!behind.ok()) return behind.status();
  if (*behind) {
    // A worker reaches a step only after it has seen the update before it, so this shard lost updates that it saw.
    const absl::StatusOr<uint32_t> caught_up = CatchUp(job, push.worker, push.incarnation, {}, {push.step, push.step});
    if (!caught_up.ok()) return caught_up.status();
  }
  std::vector<CheckedRows::Part>& parts = checked->parts;
  MessagePayloads payloads;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const uint64_t rows = gradients[i].ids.size() / sizeof(uint64_t);
    payloads.Add(gradients[i].encoding, PayloadBytes(gradients[i].payload), rows * parts[i].table->spec().dim());
  }
  const auto take_turn = [&](CheckedRows::Part& part, bool ordered) {
    part.turn =
        part.table->TakeTurn(TableMessageOf(push, messages_of_step), part.gradients, std::move(part.waiting), ordered);
  };
  const absl::StatusOr<PushOutcome> outcome = changes_.Push(
      *source, push.sequence,
      [&] {
        const bool recorded = changes_.journal() != nullptr;
        return recorded ? EncodeRows(push, messages_of_step, gradients, parts.size()) : JournalEntry();
      },
      [&](size_t i) {
        take_turn(parts[i], /*ordered=*/true);
        return uint64_t{0};
      },
      [&](const auto& places, auto& released) {
        ++counts_.pushes;
        const absl::Time began = clock_->Now();
        uint64_t bytes = 0;
        PushOutcome sum;
        // The last table of the message, whose rate is reported.
        const size_t last = gradients.empty() ? 0 : gradients.size() - 1;
        for (size_t i = 0; i < parts.size(); ++i) {
          if (!places[i].has_value()) take_turn(parts[i], /*ordered=*/false);
          const Table::Applied applied = parts[i].table->Apply(parts[i].gradients, parts[i].turn);
          Append(applied.released, released);
          const BatchOutcome& pushed = applied.rows;
          const size_t rows = parts[i].gradients.order.hashes().size();
          if (parts[i].turn.kept) sum.buffered += rows;
          if (parts[i].turn.dropped) sum.dropped += rows;
          sum.applied += pushed.applied;
          bytes += pushed.applied * parts[i].table->spec().dim() * sizeof(float);
          sum.created += pushed.created;
          sum.orphaned += pushed.orphaned;
          sum.not_admitted += pushed.not_admitted;
          sum.evicted += pushed.evicted();
          sum.max_staleness = std::max<uint64_t>(sum.max_staleness, pushed.max_staleness);
          if (i <= last) sum.learning_rate = parts[i].turn.learning_rate;
        }
        counts_.dropped += sum.dropped;
        counts_.AddWork(clock_->Now() - began, absl::ZeroDuration(), bytes);
        return sum;
      });
  flight.End(outcome.status());
  if (outcome.ok() && received != nullptr) received->Add(payloads);
  if (outcome.ok() && outcome->duplicate) {
    ++counts_.pushes;
    ++counts_.duplicates;
  }
  return outcome;
}

absl::StatusOr<uint32_t> ParameterShard::RowElements(absl::string_view job, uint32_t table_id) const {
  if (absl::Status status = job_.CheckName(job); !status.ok()) return status;
  const absl::StatusOr<Table*> table = tables_.Find(table_id);
  if (!table.ok()) return table.status();
  return (*table)->spec().dim();
}

absl::StatusOr<PulledRows> ParameterShard::PullRows(absl::string_view job, uint32_t table_id, const MessageRows& order,
                                                    v1::RowQuery::Missing missing) {
  if (absl::Status status = job_.CheckName(job); !status.ok()) return status;
  const absl::StatusOr<Table*> table = tables_.Find(table_id);
  if (!table.ok()) return table.status();
  if (absl::Status status = (*table)->CheckOwned(order.hashes()); !status.ok()) {
    return Annotate(status, absl::StrCat("shard ", options_.rank));
  }
  return (*table)->Pull(order, missing);
}

absl::StatusOr<Table*> ParameterShard::FindForReader(absl::string_view job, uint32_t table_id) const {
  const absl::Status status = job.empty() ? absl::OkStatus() : job_.CheckName(job);
  return status.ok() ? tables_.Find(table_id) : status;
}

absl::StatusOr<Table::Inspected> ParameterShard::InspectRows(absl::string_view job, uint32_t table_id, uint32_t first,
                                                             uint32_t count, uint32_t top) const {
  const absl::StatusOr<Table*> table = FindForReader(job, table_id);
  if (!table.ok()) return table.status();
  const uint32_t ranges = RangeCount((*table)->spec());
  if (count > 0 && first < ranges && count <= ranges - first) return (*table)->Inspect(first, count, top);
  return WithReason(v1::ERROR_REASON_INVALID_REQUEST,
                    absl::InvalidArgumentError(absl::StrCat("shard ", options_.rank, ": got ", count, " ranges from ",
                                                            first, ", want at least one of the table's ", ranges)));
}

absl::StatusOr<WatchableTable> ParameterShard::Watchable(absl::string_view job, uint32_t table_id) const {
  const absl::StatusOr<Table*> table = FindForReader(job, table_id);
  if (!table.ok()) return table.status();
  return (*table)->watchable();
}

absl::StatusOr<SetOutcome> ParameterShard::TakeValues(absl::Span<const ValueView> values,
                                                      std::vector<CheckedValues> checked,
                                                      ChangeSequencer::Released& released) {
  // At rest, so that no push reaches a slice between its check and its change.
  ChangeSequencer::AtRest rest(changes_);
  if (absl::Status status = job_.closed(); !status.ok()) return status;
  std::vector<size_t> fresh;
  for (size_t i = 0; i < checked.size(); ++i) {
    const absl::StatusOr<bool> may = checked[i].slice->CheckValues(checked[i].checksum);
    if (!may.ok()) return Annotate(may.status(), absl::StrCat("shard ", options_.rank));
    if (*may) fresh.push_back(i);
  }
  const SetOutcome outcome{static_cast<uint32_t>(fresh.size()), static_cast<uint32_t>(checked.size() - fresh.size())};
  if (fresh.empty()) return outcome;
  if (absl::Status status = changes_.Record(EncodeValues(values, fresh)); !status.ok()) {
    return Annotate(status, absl::StrCat("shard ", options_.rank, ": log"));
  }
  for (size_t i : fresh)
    Append(checked[i].slice->SetValues(std::move(checked[i].values), checked[i].checksum), released);
  return outcome;
}

absl::StatusOr<SetOutcome> ParameterShard::SetValues(absl::string_view job, absl::Span<const ValueView> values,
                                                     PayloadCounts* received) {
  absl::StatusOr<std::vector<CheckedValues>> checked = job_.CheckValues(job, values);
  if (!checked.ok()) return checked.status();
  MessagePayloads payloads;
  for (size_t i = 0; i < values.size(); ++i) {
    payloads.Add(values[i].encoding, PayloadBytes(values[i].payload), (*checked)[i].values.size());
  }
  ChangeSequencer::Released released;
  const absl::StatusOr<SetOutcome> outcome = TakeValues(values, *std::move(checked), released);
  if (outcome.ok() && received != nullptr) received->Add(payloads);
  if (released.empty()) return outcome;
  // A pull must not return values that a machine failure could lose, because nobody can set them again.
  AwaitSynced([this, released = std::move(released)](const absl::Status& synced) {
    for (WaitList::Ticket ticket : released) {
      if (synced.ok()) {
        waits_.CountDown(ticket);
      } else {
        waits_.End(ticket, synced);
      }
    }
  });
  return outcome;
}

absl::StatusOr<uint32_t> ParameterShard::ReportVersions(absl::string_view job, uint32_t worker, uint64_t incarnation,
                                                        absl::Span<const SeenSlice> seen, const SeenSteps& rows) {
  if (may_have_lost_) return CatchUp(job, worker, incarnation, seen, rows);
  const absl::StatusOr<ChangeSource> source = job_.FindSource(job, worker, incarnation);
  if (!source.ok()) return source.status();
  if (absl::Status status = changes_.CheckIncarnation(*source); !status.ok()) return status;
  return 0;
}

absl::StatusOr<uint32_t> ParameterShard::TakeSeen(const ChangeSource& source, absl::Span<const SeenSlice> seen,
                                                  absl::Span<Slice* const> slices, const SeenSteps& rows,
                                                  ChangeSequencer::Released& released) {
  // At rest, so that no table is applying a step that it skips.
  ChangeSequencer::AtRest rest(changes_);
  if (absl::Status status = changes_.CheckIncarnation(source); !status.ok()) return status;
  if (absl::Status status = changes_.Record(EncodeCatchUp(source.worker, source.incarnation, seen, rows));
      !status.ok()) {
    return Annotate(status, absl::StrCat("shard ", options_.rank, ": log"));
  }
  uint32_t raised = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    const Slice::CaughtUp caught_up =
        slices[i]->CatchUp(source.worker, seen[i].version, seen[i].finished_steps, std::nullopt);
    if (caught_up.lost_updates > 0) ++raised;
    counts_.lost_updates += caught_up.lost_updates;
    Append(caught_up.released, released);
  }
  for (Table* table : tables_.All()) {
    const Table::CaughtUp caught_up = table->CatchUp(source.worker, rows.applied, rows.ended);
    if (caught_up.lost_steps > 0) ++raised;
    counts_.lost_updates += caught_up.lost_steps;
    Append(caught_up.released, released);
  }
  return raised;
}

absl::StatusOr<uint32_t> ParameterShard::CatchUp(absl::string_view job, uint32_t worker, uint64_t incarnation,
                                                 absl::Span<const SeenSlice> seen, const SeenSteps& rows) {
  std::vector<SliceKey> keys;
  for (const SeenSlice& slice : seen) keys.push_back(slice.key);
  const absl::StatusOr<std::vector<Slice*>> slices = job_.Find(job, keys);
  if (!slices.ok()) return slices.status();
  const absl::StatusOr<ChangeSource> source = job_.FindSource(job, worker, incarnation);
  if (!source.ok()) return source.status();
  ChangeSequencer::Released released;
  const absl::StatusOr<uint32_t> raised = TakeSeen(*source, seen, *slices, rows, released);
  for (WaitList::Ticket ticket : released) waits_.CountDown(ticket);
  return raised;
}

absl::Status ParameterShard::Pause(absl::string_view job, uint32_t worker, uint64_t incarnation) {
  const absl::StatusOr<ChangeSource> source = job_.FindSource(job, worker, incarnation);
  if (!source.ok()) return source.status();
  std::vector<std::pair<SliceKey, Slice*>> slices;
  std::vector<Table*> tables;
  std::vector<Table::Turn> turns;
  const auto describe = [&] {
    // Listed inside the gate, because a replay pauses all tensors whose declaration was recorded before this pause.
    slices = job_.Slices();
    tables = tables_.All();
    turns.resize(tables.size());
    return EncodePause(worker, incarnation, slices.size() + tables.size());
  };
  return changes_.Make(
      *source, describe,
      [&](size_t i) {
        if (i < slices.size()) return slices[i].second->ReserveOrder();
        // A table pauses at its place in the order of the records.
        turns[i - slices.size()] = tables[i - slices.size()]->TakePause(worker);
        return uint64_t{0};
      },
      [&](const auto& places, auto& released) {
        for (size_t i = 0; i < tables.size(); ++i) {
          if (!places[slices.size() + i].has_value()) turns[i] = tables[i]->TakePause(worker);
          Append(tables[i]->Apply({}, turns[i]).released, released);
        }
        for (size_t i = 0; i < slices.size(); ++i) Append(slices[i].second->Pause(worker, places[i]), released);
      });
}

WaitList::Ticket ParameterShard::AwaitPull(absl::string_view job, const PullQuery& pull,
                                           absl::Span<const SliceKey> keys, absl::Duration wait, bool by_reader,
                                           WaitList::Done done) {
  const absl::StatusOr<std::vector<Slice*>> slices = job_.CheckPull(job, keys);
  if (!slices.ok()) {
    done(slices.status());
    return WaitList::kNoTicket;
  }
  return Await(pull, {slices->begin(), slices->end()}, 0, wait, by_reader, std::move(done));
}

WaitList::Ticket ParameterShard::AwaitRows(absl::string_view job, const PullQuery& pull,
                                           absl::Span<const uint32_t> tables, uint64_t bytes, absl::Duration wait,
                                           bool by_reader, WaitList::Done done) {
  absl::Status status = job_.CheckName(job);
  std::vector<Awaited> awaited;
  for (uint32_t id : tables) {
    const absl::StatusOr<Table*> table = tables_.Find(id);
    status.Update(table.status());
    if (table.ok()) awaited.push_back(*table);
  }
  if (!status.ok()) {
    done(status);
    return WaitList::kNoTicket;
  }
  return Await(pull, std::move(awaited), bytes, wait, by_reader, std::move(done));
}

void ParameterShard::RecordTimeout(const PullWait& wait, FlightEvent event, absl::Duration waited,
                                   const absl::Status& timeout) const {
  event.activity = FlightActivity::kMissing;
  event.amount = absl::ToInt64Milliseconds(waited);
  for (uint32_t worker : wait.missing()) {
    event.peer = worker;
    FlightRecorder::OfProcess().Add(event);
  }
  FlightDumper::Request(std::string(timeout.message()));
}

WaitList::Ticket ParameterShard::Await(const PullQuery& pull, std::vector<Awaited> awaited, uint64_t bytes,
                                       absl::Duration wait, bool by_reader, WaitList::Done done) {
  ++counts_.pulls;
  FlightEvent event = {.activity = FlightActivity::kWait,
                       .peer = pull.worker.value_or(FlightEvent::kNone),
                       .step = pull.step,
                       .amount = awaited.size()};
  const auto first =
      std::find_if(awaited.begin(), awaited.end(), [&](const Awaited& one) { return !one.MayPull(pull); });
  if (first == awaited.end()) {
    counts_.wait_microseconds.Add(0);
    event.activity = FlightActivity::kPull;
    event.edge = FlightEdge::kEnd;
    FlightRecorder::OfProcess().Add(event);
    done(absl::OkStatus());
    return WaitList::kNoTicket;
  }
  absl::StatusOr<ByteBudget::Reservation> room =
      (by_reader ? reader_waits_ : worker_waits_).Reserve(PullWait::BytesOf(awaited.size()) + bytes);
  if (!room.ok()) {
    done(Annotate(room.status(), absl::StrCat("shard ", options_.rank, ": waiting pulls")));
    return WaitList::kNoTicket;
  }
  FlightRecorder::OfProcess().Add(event);
  event.edge = FlightEdge::kEnd;
  const absl::Time start = clock_->Now();
  // Shared by the three callbacks, which the wait list keeps and frees together.
  const size_t at = first - awaited.begin();
  const auto waiting = std::make_shared<PullWait>(pull, std::move(awaited), at, *std::move(room));
  const WaitList::Ticket ticket = waits_.Add(
      start + wait,
      [this, waiting, start, worker = pull.worker](WaitList::Ticket own, WaitList::Cause cause) {
        if (!waiting->Release(own)) return false;
        if (cause.has_value() && cause != worker) caused_waits_.Charge(*cause, start, clock_->Now());
        return true;
      },
      [this, waiting] { return absl::StrCat("shard ", options_.rank, ": ", waiting->Explain()); },
      [this, waiting, start, event, done = std::move(done)](absl::Status status) mutable {
        event.code = status.code();
        FlightRecorder::OfProcess().Add(event);
        if (absl::IsDeadlineExceeded(status)) {
          RecordTimeout(*waiting, event, clock_->Now() - start, status);
          status = waiting->AddMissing(status);
        }
        waiting->End();
        counts_.wait_microseconds.Add(std::max<int64_t>(absl::ToInt64Microseconds(clock_->Now() - start), 0));
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

}  // namespace ballast
