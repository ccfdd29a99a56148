// SPDX-License-Identifier: Apache-2.0
#include "server/tables/table.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/status/error_reason.h"
#include "common/tables/row_hash.h"
#include "common/tables/table_spec.h"
#include "server/tables/row_inspection.h"

namespace ballast {
namespace {

absl::Status CheckSpans(const OwnedTable& table) {
  const uint32_t ranges = RangeCount(table.spec);
  if (table.spans.size() == 1) {
    const v1::RangeSpan& span = table.spans[0];
    if (span.count() >= 1 && span.first() < ranges && span.count() <= ranges - span.first()) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("table \"", table.spec.name(), "\": got ", table.spans.size(), " spans",
                   table.spans.empty() ? "" : absl::StrCat(" from range ", table.spans[0].first()),
                   ", want one within the table's ", ranges, " ranges"));
}

// One bit for each id of the message; none if all rows exist. A row that exists has had an update.
std::string Bits(const MessageRows& order, absl::Span<const uint32_t> versions) {
  if (std::find(versions.begin(), versions.end(), 0) == versions.end()) return "";
  std::string bits((order.ids() + 7) / 8, '\0');
  for (size_t at = 0; at < order.ids(); ++at) {
    if (versions[order.in_order() ? at : order.row_of()[at]] != 0) bits[at / 8] |= 1 << (at % 8);
  }
  return bits;
}

// The leading hashes, which are in ranges before that one. `hashes`: ascending.
absl::Span<const uint64_t> Before(uint32_t range, absl::Span<const uint64_t> hashes, int range_bits) {
  const auto end = std::partition_point(hashes.begin(), hashes.end(),
                                        [&](uint64_t hash) { return RangeOf(hash, range_bits) < range; });
  return hashes.first(end - hashes.begin());
}

RowRules RulesOf(const v1::TableSpec& spec) {
  RowRules rules;
  rules.min_uses = std::max(spec.admission().min_uses(), 1u);
  rules.sketch = spec.admission().sketch();
  if (spec.admission().probability() > 0) rules.probability = spec.admission().probability();
  rules.max_rows = spec.eviction().max_rows() >> RangeBits(spec);
  rules.half_life = spec.eviction().half_life_steps();
  rules.min_norm = spec.eviction().min_norm();
  return rules;
}

// The step that a message completes.
std::optional<TurnQueue::Change> EndOf(const StepMessage& place) {
  return TurnQueue::Change{place.worker, place.step + 1};
}

// The largest number stands for larger ones.
uint32_t Narrow(uint64_t staleness) {
  return static_cast<uint32_t>(std::min<uint64_t>(staleness, std::numeric_limits<uint32_t>::max()));
}

SparseTableOptions RowOptions(const OwnedTable& table, const RowOptimizer& optimizer) {
  SparseTableOptions options;
  options.dim = table.spec.dim();
  options.slot_floats = optimizer.SlotFloats(options.dim);
  options.range_bits = RangeBits(table.spec);
  options.first_range = table.spans[0].first();
  options.range_count = table.spans[0].count();
  options.rules = RulesOf(table.spec);
  return options;
}

// Reserves the memory of the table's ranges, which they take before they have rows.
absl::StatusOr<ByteBudget::Reservation> RoomFor(const OwnedTable& table, ByteBudget& budget) {
  const uint32_t ranges = table.spans[0].count();
  const uint64_t bytes = SparseTable::BytesOfRanges(ranges);
  // A budget of which nothing is in use would give out any number.
  if (bytes <= budget.limit()) {
    absl::StatusOr<ByteBudget::Reservation> room = budget.Reserve(bytes);
    if (room.ok()) return room;
  }
  return WithReason(
      v1::ERROR_REASON_MEMORY_LIMIT,
      absl::FailedPreconditionError(absl::StrCat("table \"", table.spec.name(), "\": its ", ranges, " ranges take ",
                                                 bytes, " bytes without rows, but of the memory limit of ",
                                                 budget.limit(), " bytes ", budget.used(), " are in use")),
      {{"tensor", table.spec.name()}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Table>> Table::Make(OwnedTable table, const Policy& policy, TableMemory* memory) {
  if (absl::Status status = ValidateTableSpec(table.spec); !status.ok()) return status;
  if (absl::Status status = CheckSpans(table); !status.ok()) return status;
  const v1::TableSpec& spec = table.spec;
  absl::StatusOr<std::unique_ptr<RowOptimizer>> optimizer = MakeRowOptimizer(spec.optimizer());
  if (!optimizer.ok()) return optimizer.status();
  absl::StatusOr<RowInitializer> initializer = RowInitializer::Make(spec.initializer(), spec.seed(), spec.name());
  if (!initializer.ok()) return initializer.status();
  absl::StatusOr<ByteBudget::Reservation> room = RoomFor(table, memory->budget());
  if (!room.ok()) return room.status();
  return std::unique_ptr<Table>(
      new Table(std::move(table), *std::move(initializer), *std::move(optimizer), policy, memory, *std::move(room)));
}

Table::Table(OwnedTable owned, RowInitializer initializer, std::unique_ptr<RowOptimizer> optimizer,
             const Policy& policy, TableMemory* memory, ByteBudget::Reservation room)
    : owned_(std::move(owned)),
      policy_(policy),
      initial_(std::move(initializer), owned_.spec.id()),
      optimizer_(std::move(optimizer)),
      memory_(memory),
      room_(std::move(room)),
      rows_(&memory->arena(), RowOptions(owned_, *optimizer_)),
      ticks_(owned_.spec.eviction().ttl_seconds()) {
  absl::MutexLock lock(&mutex_);
  if (policy_.quorum > 0) steps_.emplace(policy_.workers, policy_.quorum, spec().first_step());
  if (policy_.steps_ahead.has_value()) clocks_.emplace(policy_.workers, *policy_.steps_ahead, spec().first_step());
}

absl::Status Table::NotOwner(uint32_t range) const {
  return WithReason(
      v1::ERROR_REASON_NOT_OWNER,
      absl::FailedPreconditionError(absl::StrCat("does not own range ", range, " of \"", spec().name(), "\"")),
      {{"tensor", spec().name()}});
}

absl::Status Table::CheckOwned(absl::Span<const uint64_t> hashes) const {
  if (hashes.empty()) return absl::OkStatus();
  const SparseTableOptions& own = rows_.options();
  // In between are only ranges between the two.
  for (uint64_t hash : {hashes.front(), hashes.back()}) {
    const uint32_t range = RangeOf(hash, own.range_bits);
    if (range < own.first_range || range - own.first_range >= own.range_count) return NotOwner(range);
  }
  return absl::OkStatus();
}

uint64_t Table::BytesOfNewRow() const {
  const SparseTableOptions& own = rows_.options();
  return RowLayout(own.dim, own.slot_floats).bytes() * 5 / 4 + 24;
}

absl::StatusOr<ByteBudget::Reservation> Table::MakeRoom(absl::Span<const uint64_t> hashes) const {
  if (hashes.empty()) return ByteBudget::Reservation();
  ByteBudget& budget = memory_->budget();
  // Null if there is no room. A budget of which nothing is in use would give out any number.
  const auto reserve = [&](uint64_t rows) -> std::optional<ByteBudget::Reservation> {
    const uint64_t bytes = rows * BytesOfNewRow();
    if (bytes > budget.limit()) return std::nullopt;
    absl::StatusOr<ByteBudget::Reservation> room = budget.Reserve(bytes);
    return room.ok() ? std::optional(*std::move(room)) : std::nullopt;
  };
  // While there is memory for all of them, it does not matter which exist.
  if (auto room = reserve(hashes.size())) return *std::move(room);
  uint64_t missing = rows_.CountMissing(hashes);
  // Rows that were evicted have left their places.
  missing -= std::min(missing, rows_.free_places());
  if (missing == 0) return ByteBudget::Reservation();
  if (auto room = reserve(missing)) return *std::move(room);
  return WithReason(v1::ERROR_REASON_TABLE_MEMORY,
                    absl::ResourceExhaustedError(
                        absl::StrCat(missing, " of ", hashes.size(), " rows would begin, but of the memory limit of ",
                                     budget.limit(), " bytes ", budget.used(), " are in use; rows that exist go on")),
                    {{"tensor", spec().name()}});
}

absl::StatusOr<ByteBudget::Reservation> Table::ReserveGradients(const StepMessage& message, uint64_t bytes) const {
  bool ends = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!steps_.has_value() || bytes == 0) return ByteBudget::Reservation();
    ends = steps_->MayEnd(message);
  }
  if (ends) return memory_->budget().Count(bytes);
  absl::StatusOr<ByteBudget::Reservation> reserved = memory_->budget().Reserve(bytes);
  if (reserved.ok()) return reserved;
  return WithReason(v1::ERROR_REASON_TABLE_MEMORY,
                    absl::ResourceExhaustedError(absl::StrCat(
                        "gradients of ", bytes, " bytes would wait for their step, but of the ", "memory limit of ",
                        memory_->budget().limit(), " bytes ", memory_->budget().used(), " are in use")),
                    {{"tensor", spec().name()}});
}

absl::Status Table::CheckStep(uint64_t step) const {
  absl::MutexLock lock(&mutex_);
  if (clocks_.has_value()) return clocks_->CheckStep(step);
  return steps_.has_value() ? steps_->CheckStep(step) : absl::OkStatus();
}

RowTime Table::TimeLocked() const {
  RowTime time{static_cast<uint32_t>(clock_)};
  const v1::Eviction& eviction = spec().eviction();
  if (eviction.ttl_steps() > 0) time.max_age = eviction.ttl_steps();
  if (const uint64_t live_since = ticks_.live_since(); live_since > 0) {
    time.max_age = std::min<uint64_t>(time.max_age, clock_ - std::min(clock_, live_since));
  }
  return time;
}

void Table::SetMoment(std::optional<uint32_t> worker, Turn& turn) const {
  turn.clock = clock_;
  turn.time = TimeLocked();
  turn.learning_rate = optimizer_->LearningRate(clock_ + 1, position_);
  turn.draw = RowHash(RowHash(spec().seed(), spec().id()) ^ clock_, worker.has_value() ? *worker + 1 : 0);
}

Table::Turn Table::TakeTurn(const Message& message, const RowGradients& gradients, ByteBudget::Reservation memory,
                            bool ordered) {
  const absl::Span<const uint64_t> hashes = gradients.order.hashes();
  absl::MutexLock lock(&mutex_);
  position_ = std::max(position_, message.schedule_position);
  ticks_.Add(message.unix_seconds, clock_);
  Turn turn;
  SetMoment(steps_.has_value() ? std::nullopt : std::optional(message.place.worker), turn);
  if (!steps_.has_value()) {
    if (ordered) turn.places = rows_.ReserveOrder(hashes);
    // Some messages of earlier steps may have come before the table was declared.
    const bool ends = message.place.step >= spec().first_step() && messages_.Add(message.place);
    // The turn's own step does not count for it, nor do its other messages, since a step ends with the last of them.
    if (ScalesByTable()) turn.staleness = clock_ - std::min(gradients.clock.value_or(clock_), clock_);
    if (ends) ++clock_;
    if (QueuesTurnsLocked()) turn.number = turns_.Take(ends ? EndOf(message.place) : std::nullopt);
    return turn;
  }
  BufferedRows rows{message.place.worker,
                    message.place.incarnation,
                    message.sequence,
                    message.examples,
                    {hashes.begin(), hashes.end()},
                    gradients.values,
                    {}};
  if (CountsUses(spec())) rows.uses = gradients.uses;
  StepAccumulator::Offered offered = steps_->Offer(message.place, std::move(rows), std::move(memory));
  turn.dropped = offered.dropped;
  turn.kept = !offered.dropped && !offered.closed.has_value();
  turn.closed = std::move(offered.closed);
  if (turn.closed.has_value()) ++clock_;
  return turn;
}

Table::Turn Table::TakePause(uint32_t worker) {
  absl::MutexLock lock(&mutex_);
  Turn turn;
  turn.kept = true;
  if (!steps_.has_value()) {
    messages_.Forget(worker);
    if (clocks_.has_value()) turn.number = turns_.Take(TurnQueue::Change{worker, std::nullopt});
    return turn;
  }
  SetMoment(std::nullopt, turn);
  turn.closed = steps_->Pause(worker);
  if (turn.closed.has_value()) ++clock_;
  return turn;
}

BatchOutcome Table::ApplyRows(absl::Span<const uint64_t> hashes, const Turn& turn, BatchPush push) {
  push.hashes = Before(turn.end_range, hashes, rows_.options().range_bits);
  if (!push.pulled_versions.empty()) push.pulled_versions.remove_suffix(hashes.size() - push.hashes.size());
  if (!push.uses.empty()) push.uses.remove_suffix(hashes.size() - push.hashes.size());
  push.learning_rate = turn.learning_rate / (1.0f + static_cast<float>(turn.staleness));
  push.time = turn.time;
  push.draw = turn.draw;
  push.optimizer = optimizer_.get();
  push.initializer = &initial_;
  push.places = turn.places;
  const BatchOutcome outcome = rows_.Push(push);
  if (outcome.created > 0 || outcome.side_bytes != 0) memory_->Count(outcome.side_bytes);
  if (outcome.evicted() + outcome.returned + outcome.not_admitted > 0) {
    absl::MutexLock lock(&mutex_);
    evicted_.set_expired(evicted_.expired() + outcome.expired);
    evicted_.set_over_budget(evicted_.over_budget() + outcome.over_budget);
    evicted_.set_small_norm(evicted_.small_norm() + outcome.small_norm);
    evicted_.set_returned(evicted_.returned() + outcome.returned);
    not_admitted_ += outcome.not_admitted;
  }
  return outcome;
}

Table::Applied Table::Apply(const RowGradients& gradients, const Turn& turn) {
  Applied applied;
  BatchPush push;
  if (turn.closed.has_value()) {
    const MergedRows merged = turn.closed->Merge(spec().dim(), CountsUses(spec()));
    push.gradients = merged.gradients.values().data();
    push.gradient_scale = merged.scale;
    push.uses = merged.uses;
    applied.rows = ApplyRows(merged.hashes, turn, push);
    absl::MutexLock lock(&mutex_);
    steps_->SetApplied();
    applied.released = TakeReleasedLocked();
    return applied;
  }
  if (!turn.kept && !turn.dropped) {
    push.gradients = gradients.values.values().data();
    push.pulled_versions = absl::MakeConstSpan(gradients.versions);
    push.scale_by_staleness = policy_.scaling == Policy::Scaling::kByRow;
    push.uses = gradients.uses;
    applied.rows = ApplyRows(gradients.order.hashes(), turn, push);
    if (ScalesByTable()) applied.rows.max_staleness = applied.rows.applied > 0 ? Narrow(turn.staleness) : 0;
  }
  if (!turn.number.has_value()) return applied;
  absl::MutexLock lock(&mutex_);
  for (const TurnQueue::Change& change : turns_.SetApplied(*turn.number)) {
    if (!clocks_.has_value()) continue;
    if (change.finished.has_value()) {
      clocks_->Finish(change.worker, *change.finished);
    } else {
      clocks_->Pause(change.worker);
    }
  }
  applied.released = TakeReleasedLocked();
  return applied;
}

Table::CaughtUp Table::CatchUp(uint32_t worker, uint64_t seen, uint64_t ended) {
  CaughtUp caught_up;
  Turn turn;
  {
    absl::MutexLock lock(&mutex_);
    SetMoment(std::nullopt, turn);
    if (clocks_.has_value()) {
      messages_.Forget(worker, ended);
      caught_up.lost_steps = clocks_->CatchUp(worker, ended);
    } else if (steps_.has_value()) {
      StepAccumulator::CaughtUp steps = steps_->CatchUp(worker, seen, ended);
      caught_up.lost_steps = steps.lost;
      turn.closed = std::move(steps.closed);
    }
    clock_ += caught_up.lost_steps + (turn.closed.has_value() ? 1 : 0);
    if (!turn.closed.has_value()) {
      if (steps_.has_value()) steps_->SetApplied();
      caught_up.released = TakeReleasedLocked();
      return caught_up;
    }
  }
  caught_up.released = Apply({}, turn).released;
  return caught_up;
}

bool Table::MayPullLocked(uint64_t step) const {
  if (clocks_.has_value()) return clocks_->MayPull(step);
  return !steps_.has_value() || steps_->MayPull(step);
}

std::vector<WaitList::Ticket> Table::TakeReleasedLocked() {
  std::vector<WaitList::Ticket> released;
  while (!waiting_.empty() && MayPullLocked(waiting_.begin()->first)) {
    released.push_back(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
  }
  return released;
}

bool Table::MayPull(uint64_t step) const {
  absl::MutexLock lock(&mutex_);
  return MayPullLocked(step);
}

bool Table::MayPullOrRelease(uint64_t step, WaitList::Ticket ticket) {
  absl::MutexLock lock(&mutex_);
  if (MayPullLocked(step)) return true;
  waiting_.emplace(step, ticket);
  return false;
}

void Table::Forget(uint64_t step, WaitList::Ticket ticket) {
  absl::MutexLock lock(&mutex_);
  waiting_.erase({step, ticket});
}

bool Table::MayLackFirstStep(uint64_t step) const {
  absl::MutexLock lock(&mutex_);
  return clock_ == 0 && step > spec().first_step() + 1 && !MayPullLocked(step);
}

std::vector<uint32_t> Table::Missing(uint64_t step) const {
  absl::MutexLock lock(&mutex_);
  if (MayPullLocked(step)) return {};
  return clocks_.has_value() ? clocks_->Missing(step) : steps_->Missing(step);
}

PulledRows Table::Pull(const MessageRows& order, v1::RowQuery::Missing missing) const {
  const uint32_t dim = spec().dim();
  const size_t rows = order.hashes().size();
  ValueBuffer values(rows * dim);
  std::vector<uint32_t> versions(rows);
  BatchPull pull;
  pull.hashes = order.hashes();
  const bool by_default = missing == v1::RowQuery::MISSING_UNSPECIFIED;
  const bool zeros = by_default ? spec().has_admission() : missing == v1::RowQuery::MISSING_ZERO;
  pull.missing = zeros ? nullptr : &initial_;
  PulledRows pulled;
  {
    absl::MutexLock lock(&mutex_);
    pull.time = TimeLocked();
    // Before the rows are read, so they have the updates of at least these steps.
    if (ScalesByTable()) pulled.clock = clock_ - turns_.open_ends();
  }
  pull.values = rows > 0 ? values.mutable_values().data() : nullptr;
  pull.versions = versions.data();
  rows_.Pull(pull);
  pulled.present = Bits(order, versions);
  if (order.in_order()) {
    pulled.values = std::move(values);
    pulled.versions = std::move(versions);
    return pulled;
  }
  pulled.values = ValueBuffer(order.ids() * dim);
  pulled.versions.resize(order.ids());
  for (size_t at = 0; at < order.ids(); ++at) {
    const uint32_t row = order.row_of()[at];
    std::copy_n(values.values().data() + size_t{row} * dim, dim, pulled.values.mutable_values().data() + at * dim);
    pulled.versions[at] = versions[row];
  }
  return pulled;
}

Table::Inspected Table::Inspect(uint32_t first, uint32_t count, uint32_t top) const {
  constexpr absl::Duration kLongest = absl::Milliseconds(100);
  const SparseTableOptions& own = rows_.options();
  const uint64_t end = std::min<uint64_t>(uint64_t{first} + count, RangeCount(spec()));
  const uint64_t own_end = std::min<uint64_t>(end, uint64_t{own.first_range} + own.range_count);
  RowTime time;
  {
    absl::MutexLock lock(&mutex_);
    time = TimeLocked();
  }
  RowInspection inspection(spec().id(), time, top);
  const absl::Time began = absl::Now();
  uint64_t range = std::max(first, own.first_range);
  for (; range < own_end; ++range) {
    rows_.ForEachRow(range, [&](const RowView& row) { inspection.Add(row); });
    std::vector<uint64_t> by_uses;
    const uint64_t waiting = rows_.CountWaiting(range, by_uses);
    inspection.AddWaiting(waiting, by_uses);
    if (absl::Now() - began < kLongest) continue;
    ++range;
    break;
  }
  return {inspection.statistics(), inspection.Top(), static_cast<uint32_t>(range < own_end ? range : end)};
}

WatchableTable Table::watchable() {
  WatchableTable table{spec().id(), spec().dim(), rows_.options().first_range, rows_.ranges()};
  if (spec().eviction().ttl_steps() + spec().eviction().ttl_seconds() > 0) {
    table.sweep = [this](uint32_t index) { Sweep(index); };
  }
  return table;
}

uint64_t Table::Sweep(uint32_t index) {
  RowTime time;
  {
    absl::MutexLock lock(&mutex_);
    time = TimeLocked();
  }
  const uint64_t swept = rows_.Sweep(index, time);
  absl::MutexLock lock(&mutex_);
  evicted_.set_expired(evicted_.expired() + swept);
  return swept;
}

Table::Status Table::status() const {
  Status status{rows_.rows(), rows_.memory_bytes(), 0, {}, rows_.waiting(), 0, 0};
  absl::MutexLock lock(&mutex_);
  status.clock = clock_;
  status.evicted = evicted_;
  status.not_admitted = not_admitted_;
  if (steps_.has_value()) status.buffered_bytes = steps_->bytes();
  return status;
}

}  // namespace ballast
