// SPDX-License-Identifier: Apache-2.0
#include "server/tables/table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "common/tables/row_hash.h"
#include "common/tables/table_spec.h"

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

SparseTableOptions RowOptions(const OwnedTable& table, const RowOptimizer& optimizer) {
  SparseTableOptions options;
  options.dim = table.spec.dim();
  options.slot_floats = optimizer.SlotFloats(options.dim);
  options.range_bits = RangeBits(table.spec);
  options.first_range = table.spans[0].first();
  options.range_count = table.spans[0].count();
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Table>> Table::Make(OwnedTable table, bool scale_by_staleness, TableMemory* memory) {
  if (absl::Status status = ValidateTableSpec(table.spec); !status.ok()) return status;
  if (absl::Status status = CheckSpans(table); !status.ok()) return status;
  const v1::TableSpec& spec = table.spec;
  absl::StatusOr<std::unique_ptr<RowOptimizer>> optimizer = MakeRowOptimizer(spec.optimizer());
  if (!optimizer.ok()) return optimizer.status();
  absl::StatusOr<RowInitializer> initializer = RowInitializer::Make(spec.initializer(), spec.seed(), spec.name());
  if (!initializer.ok()) return initializer.status();
  return std::unique_ptr<Table>(
      new Table(std::move(table), *std::move(initializer), *std::move(optimizer), scale_by_staleness, memory));
}

Table::Table(OwnedTable owned, RowInitializer initializer, std::unique_ptr<RowOptimizer> optimizer,
             bool scale_by_staleness, TableMemory* memory)
    : owned_(std::move(owned)),
      scale_by_staleness_(scale_by_staleness),
      initial_(std::move(initializer), owned_.spec.id()),
      optimizer_(std::move(optimizer)),
      memory_(memory),
      rows_(&memory->arena(), RowOptions(owned_, *optimizer_)) {}

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
  const uint64_t missing = rows_.CountMissing(hashes);
  if (missing == 0) return ByteBudget::Reservation();
  if (auto room = reserve(missing)) return *std::move(room);
  return WithReason(v1::ERROR_REASON_TABLE_MEMORY,
                    absl::ResourceExhaustedError(
                        absl::StrCat(missing, " of ", hashes.size(), " rows would begin, but of the memory limit of ",
                                     budget.limit(), " bytes ", budget.used(), " are in use; rows that exist go on")),
                    {{"tensor", spec().name()}});
}

Table::Turn Table::TakeTurn(std::optional<double> position, const StepMessage& message,
                            absl::Span<const uint64_t> hashes, bool ordered) {
  absl::MutexLock lock(&mutex_);
  position_ = std::max(position_, position);
  Turn turn;
  turn.clock = clock_;
  turn.learning_rate = optimizer_->LearningRate(clock_ + 1, position_);
  if (ordered) turn.places = rows_.ReserveOrder(hashes);
  if (messages_.Add(message)) ++clock_;
  return turn;
}

void Table::Pause(uint32_t worker) {
  absl::MutexLock lock(&mutex_);
  messages_.Forget(worker);
}

BatchOutcome Table::Apply(const RowGradients& gradients, const Turn& turn) {
  BatchPush push;
  push.hashes = Before(turn.end_range, gradients.order.hashes(), rows_.options().range_bits);
  push.gradients = gradients.values.values().data();
  push.pulled_versions = absl::MakeConstSpan(gradients.versions);
  if (!push.pulled_versions.empty()) push.pulled_versions.remove_suffix(gradients.versions.size() - push.hashes.size());
  push.learning_rate = turn.learning_rate;
  push.scale_by_staleness = scale_by_staleness_;
  push.step = static_cast<uint32_t>(turn.clock);
  push.optimizer = optimizer_.get();
  push.initializer = &initial_;
  push.places = turn.places;
  const BatchOutcome outcome = rows_.Push(push);
  if (outcome.created > 0) memory_->Count();
  return outcome;
}

PulledRows Table::Pull(const MessageRows& order, bool zero_missing) const {
  const uint32_t dim = spec().dim();
  const size_t rows = order.hashes().size();
  ValueBuffer values(rows * dim);
  std::vector<uint32_t> versions(rows);
  BatchPull pull;
  pull.hashes = order.hashes();
  pull.missing = zero_missing ? nullptr : &initial_;
  pull.values = rows > 0 ? values.mutable_values().data() : nullptr;
  pull.versions = versions.data();
  rows_.Pull(pull);
  PulledRows pulled;
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

Table::State Table::state() const {
  absl::MutexLock lock(&mutex_);
  return {clock_, position_, messages_.Save()};
}

void Table::SetState(const State& state) {
  absl::MutexLock lock(&mutex_);
  clock_ = state.clock;
  position_ = state.position;
  messages_.Restore(state.open_steps);
}

absl::Status Table::Restore(absl::Span<const uint64_t> hashes, absl::string_view images) {
  const auto damaged = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat("table \"", spec().name(), "\": ", what));
  };
  if (images.size() != hashes.size() * image_bytes()) {
    return damaged(absl::StrCat("got ", images.size(), " bytes of ", hashes.size(), " rows, want ", image_bytes(),
                                " bytes a row"));
  }
  if (absl::Status status = rows_.CheckHashes(hashes); !status.ok()) return damaged(status.message());
  absl::StatusOr<ByteBudget::Reservation> room = MakeRoom(hashes);
  if (!room.ok()) return room.status();
  const size_t restored = rows_.Restore(hashes, images.data());
  memory_->Count();
  if (restored == hashes.size()) return absl::OkStatus();
  return damaged(absl::StrCat("has ", hashes.size() - restored, " rows twice"));
}

Table::Status Table::status() const { return {rows_.rows(), rows_.memory_bytes(), state().clock}; }

}  // namespace ballast
