// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/lease_table.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/job/job_length.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

constexpr size_t kMaxFileName = 255;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 62;

uint64_t DivideUp(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

}  // namespace

LeaseTable::LeaseTable(const Options& options)
    : options_(options),
      batches_per_lease_(BatchesPerLease(options.batches_per_push)),
      by_rank_(options.workers),
      open_epochs_(options.epochs) {}

uint32_t LeaseTable::StepsOf(uint64_t examples) const { return DivideUp(examples, options_.batch_size); }

double LeaseTable::ShareAt(const Position& at) const {
  const double epoch = static_cast<double>(options_.examples);
  const double total = epoch * options_.epochs;
  return total == 0 ? 0 : (at.epoch * epoch + static_cast<double>(at.begin)) / total;
}

void LeaseTable::SetShares(uint32_t rank, DataLease& lease) const {
  uint64_t returned = 0, held = lease.end - lease.begin;
  for (const DataLease& other : returned_) returned += other.end - other.begin;
  // A worker trains its leases in their order, and reports one while it trains the next.
  for (const auto& [id, other] : held_) held += other.rank == rank ? 0 : other.lease.end - other.lease.begin;
  const double total = static_cast<double>(options_.examples) * options_.epochs;
  lease.share_end = ShareAt(next_) - static_cast<double>(returned) / total;
  lease.share_begin = std::max(0.0, lease.share_end - static_cast<double>(held) / total);
}

// Returns the rank's range of its current round and moves the rank to the next round.
DataLease LeaseTable::CutShare(uint32_t rank) {
  Position& at = by_rank_[rank];
  const uint64_t left = options_.examples - at.begin;
  const uint64_t round = std::min(left, options_.workers * batches_per_lease_ * options_.batch_size);
  // The first (round % workers) ranks get one more example.
  const uint64_t share = round / options_.workers;
  const uint64_t more = round % options_.workers;
  DataLease lease;
  lease.epoch = at.epoch;
  lease.share_begin = ShareAt(at);
  lease.share_end = ShareAt({at.epoch, at.begin + round});
  lease.begin = at.begin + rank * share + std::min<uint64_t>(rank, more);
  lease.end = lease.begin + share + (rank < more ? 1 : 0);
  lease.steps = StepsOf(share + (more > 0 ? 1 : 0));
  at.begin += round;
  if (at.begin == options_.examples) at = {at.epoch + 1, 0};
  return lease;
}

std::optional<DataLease> LeaseTable::TakeReturned(const Position& limit) {
  const auto first = std::min_element(returned_.begin(), returned_.end(), [](const DataLease& a, const DataLease& b) {
    return Position{a.epoch, a.begin} < Position{b.epoch, b.begin};
  });
  if (first == returned_.end() || !(Position{first->epoch, first->begin} < limit)) return std::nullopt;
  DataLease lease = *first;
  returned_.erase(first);
  repeated_examples_ += lease.end - lease.begin;
  return lease;
}

// Returns the first of these in job order: a returned lease, a range of an absent rank, the rank's own range. Within
// a round the rank's own range comes before those of absent ranks.
std::optional<DataLease> LeaseTable::NextInLockStep(uint32_t rank) {
  if (std::optional<DataLease> lease = TakeReturned(by_rank_[rank]); lease.has_value()) return lease;
  while (true) {
    uint32_t first = rank;
    for (uint32_t absent : absent_) {
      if (by_rank_[absent] < by_rank_[first]) first = absent;
    }
    const bool open = by_rank_[first].epoch < open_epochs_;
    if (!open || (limit_.has_value() && *limit_ <= by_rank_[first])) return std::nullopt;
    DataLease lease = CutShare(first);
    if (first == rank) return lease;
    // No rank keeps step with this range, so without examples it is not needed.
    if (lease.begin == lease.end) continue;
    lease.steps = StepsOf(lease.end - lease.begin);
    return lease;
  }
}

std::optional<DataLease> LeaseTable::NextForAnyone() {
  if (limit_.has_value()) return std::nullopt;
  if (std::optional<DataLease> lease = TakeReturned(next_); lease.has_value()) return lease;
  if (options_.stream || Done(next_)) return std::nullopt;
  const uint64_t left = options_.examples - next_.begin;
  // Toward the end of an epoch ranges get smaller, so that workers finish it at about the same time.
  const uint64_t per_push = std::min(options_.batches_per_push, batches_per_lease_);
  const uint64_t pushes = DivideUp(left, uint64_t{2} * options_.workers * per_push * options_.batch_size);
  const uint64_t size = std::min(left, std::min(pushes * per_push, batches_per_lease_) * options_.batch_size);
  DataLease lease;
  lease.epoch = next_.epoch;
  lease.begin = next_.begin;
  lease.end = next_.begin + size;
  lease.steps = StepsOf(size);
  next_.begin += size;
  if (next_.begin == options_.examples) next_ = {next_.epoch + 1, 0};
  return lease;
}

std::optional<DataLease> LeaseTable::Acquire(uint32_t rank) {
  std::optional<DataLease> lease = options_.lock_step ? NextInLockStep(rank) : NextForAnyone();
  if (!lease.has_value()) return lease;
  return Grant(rank, *std::move(lease));
}

DataLease LeaseTable::Grant(uint32_t rank, DataLease lease) {
  if (!options_.lock_step) SetShares(rank, lease);
  lease.id = next_id_++;
  held_[lease.id] = {rank, lease};
  return lease;
}

uint64_t LeaseTable::MaxStreamExamples() const {
  return Done(next_) ? 0 : std::min(MaxLeaseExamples(), options_.examples - next_.begin);
}

absl::Status LeaseTable::CheckSpan(const StreamSpan& span) const {
  const StreamPosition& begin = span.begin;
  const auto refuse = [&](absl::string_view got, absl::string_view want) {
    return absl::InvalidArgumentError(absl::StrCat("rows found in the stream: got ", got, ", want ", want));
  };
  if (begin.file.empty() || begin.file.size() > kMaxFileName || absl::StrContains(begin.file, '/')) {
    return refuse(absl::StrCat("file \"", absl::CEscape(begin.file.substr(0, 40)), "\""),
                  absl::StrCat("a name of 1 to ", kMaxFileName, " bytes without \"/\""));
  }
  if (begin.offset >= span.end_offset || span.end_offset > kMaxFileBytes || begin.lines >= span.end_lines ||
      span.end_lines - begin.lines > span.end_offset - begin.offset) {
    return refuse(
        absl::StrCat("bytes ", begin.offset, " to ", span.end_offset, ", lines ", begin.lines, " to ", span.end_lines),
        "at least one line, and no more lines than bytes");
  }
  if (span.examples >= 1 && span.examples <= MaxLeaseExamples()) return absl::OkStatus();
  return refuse(absl::StrCat(span.examples, " examples"), absl::StrCat("1 to ", MaxLeaseExamples()));
}

absl::StatusOr<std::optional<DataLease>> LeaseTable::Claim(uint32_t rank, const StreamSpan& span) {
  if (absl::Status status = CheckSpan(span); !status.ok()) return status;
  const bool follows = span.begin == stream_position_ ||
                       (span.begin.file > stream_position_.file && span.begin.offset == 0 && span.begin.lines == 0);
  // The limit may have fallen since the worker received it.
  if (!follows || limit_.has_value() || span.examples > MaxStreamExamples()) return std::nullopt;
  DataLease lease{.epoch = next_.epoch, .begin = next_.begin, .end = next_.begin + span.examples};
  lease.steps = StepsOf(span.examples);
  lease.span = span;
  next_.begin = lease.end;
  if (next_.begin == options_.examples) next_ = {next_.epoch + 1, 0};
  stream_position_ = span.end();
  return Grant(rank, std::move(lease));
}

std::optional<DataLease> LeaseTable::Unanswered(uint32_t rank, absl::Span<const uint64_t> held) const {
  for (const auto& [id, own] : held_) {
    if (own.rank == rank && !absl::c_linear_search(held, id)) return own.lease;
  }
  return std::nullopt;
}

absl::Status LeaseTable::Complete(uint32_t rank, uint64_t id) {
  const auto held = held_.find(id);
  if (id == 0 || id >= next_id_) {
    return WithReason(v1::ERROR_REASON_UNKNOWN_LEASE,
                      absl::FailedPreconditionError(absl::StrCat("lease ", id, " was never handed out")),
                      {{"lease", absl::StrCat(id)}});
  }
  if (held == held_.end()) return absl::OkStatus();
  if (held->second.rank != rank) {
    return WithReason(v1::ERROR_REASON_UNKNOWN_LEASE,
                      absl::FailedPreconditionError(absl::StrCat("lease ", id, " is held by worker ", held->second.rank,
                                                                 ", got a report from worker ", rank)),
                      {{"lease", absl::StrCat(id)}, {"rank", absl::StrCat(held->second.rank)}});
  }
  held_.erase(held);
  return absl::OkStatus();
}

void LeaseTable::Release(uint32_t rank) {
  for (auto held = held_.begin(); held != held_.end();) {
    if (held->second.rank != rank) {
      ++held;
      continue;
    }
    DataLease& lease = held->second.lease;
    if (options_.lock_step) lease.steps = StepsOf(lease.end - lease.begin);
    if (lease.begin < lease.end) returned_.push_back(lease);
    held = held_.erase(held);
  }
  absent_.insert(rank);
}

void LeaseTable::Hold() { limit_ = *absl::c_max_element(by_rank_); }

void LeaseTable::Release() {
  if (!ended_) limit_.reset();
}

void LeaseTable::End() {
  ended_ = true;
  Hold();
}

uint32_t LeaseTable::AwaitsOpen() const {
  const uint32_t epochs = absl::c_min_element(by_rank_)->epoch;
  const bool waits = options_.lock_step && !ended_ && epochs >= open_epochs_ && epochs < options_.epochs;
  return waits && held_.empty() && returned_.empty() ? epochs : 0;
}

uint32_t LeaseTable::EpochsBegun() const {
  const Position furthest = options_.lock_step ? *absl::c_max_element(by_rank_) : next_;
  return furthest.epoch + (furthest.begin > 0 ? 1 : 0);
}

bool LeaseTable::AtRest() const {
  if (!limit_.has_value() || !held_.empty()) return false;
  // Without lock step any rank may take returned leases later.
  if (!options_.lock_step) return true;
  return returned_.empty() && absl::c_all_of(by_rank_, [this](const Position& at) { return at == *limit_; });
}

void LeaseTable::Return(uint32_t rank) { absent_.erase(rank); }

bool LeaseTable::Finished() const {
  if (ended_) return AtRest();
  if (!held_.empty() || !returned_.empty()) return false;
  if (!options_.lock_step) return Done(next_);
  return std::all_of(by_rank_.begin(), by_rank_.end(), [&](const Position& at) { return Done(at); });
}

uint32_t LeaseTable::epochs_done() const {
  uint32_t done = options_.lock_step ? options_.epochs : next_.epoch;
  if (options_.lock_step) {
    for (const Position& at : by_rank_) done = std::min(done, at.epoch);
  }
  for (const DataLease& lease : returned_) done = std::min(done, lease.epoch);
  for (const auto& [id, held] : held_) done = std::min(done, held.lease.epoch);
  return done;
}

std::string LeaseTable::Outstanding() const {
  std::vector<std::string> parts;
  for (const auto& [id, held] : held_) {
    if (parts.size() == 4) {
      parts.push_back("…");
      break;
    }
    parts.push_back(absl::StrCat("worker ", held.rank, " (epoch ", held.lease.epoch + 1, ", examples ",
                                 held.lease.begin, " to ", held.lease.end, ")"));
  }
  return absl::StrJoin(parts, ", ");
}

uint64_t LeaseTable::steps_per_epoch() const {
  if (!options_.lock_step) return DivideUp(options_.examples, options_.batch_size);
  const uint64_t round = options_.workers * batches_per_lease_ * options_.batch_size;
  const uint64_t rest = options_.examples % round;
  return options_.examples / round * batches_per_lease_ + StepsOf(DivideUp(rest, options_.workers));
}

internal::v1::LeaseTableState LeaseTable::Export() const {
  internal::v1::LeaseTableState state;
  const auto put = [](const Position& at, internal::v1::LeaseTableState::Position* to) {
    to->set_epoch(at.epoch);
    to->set_begin(at.begin);
  };
  state.set_next_id(next_id_);
  for (const Position& at : by_rank_) put(at, state.add_by_rank());
  put(next_, state.mutable_next());
  for (const DataLease& lease : returned_) *state.add_returned() = ToProto(lease);
  for (const auto& [id, held] : held_) {
    internal::v1::LeaseTableState::Held* to = state.add_held();
    to->set_rank(held.rank);
    *to->mutable_lease() = ToProto(held.lease);
  }
  state.mutable_absent()->Add(absent_.begin(), absent_.end());
  state.set_repeated_examples(repeated_examples_);
  if (options_.stream) *state.mutable_stream() = ToProto(stream_position_);
  return state;
}

absl::Status LeaseTable::CheckLease(const v1::Lease& lease) const {
  if (lease.has_span() != options_.stream) {
    return absl::InvalidArgumentError(absl::StrCat("saved lease ", lease.id(), ": got ",
                                                   lease.has_span() ? "rows of a stream" : "examples of fixed data",
                                                   ", want data of this job"));
  }
  if (lease.epoch() < options_.epochs && lease.begin() <= lease.end() && lease.end() <= options_.examples) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("saved lease ", lease.id(), ": got epoch ", lease.epoch(),
                                                 ", examples ", lease.begin(), " to ", lease.end(), ", want one of ",
                                                 options_.epochs, " epochs of ", options_.examples, " examples"));
}

absl::Status LeaseTable::CheckPosition(const Position& at) const {
  if (at.epoch <= options_.epochs && at.begin < options_.examples) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("saved leases: got epoch ", at.epoch, ", example ", at.begin,
                                                 ", want at most ", options_.epochs, " epochs of ", options_.examples,
                                                 " examples"));
}

absl::Status LeaseTable::Resume(const internal::v1::LeaseTableState& state) {
  if (state.by_rank().empty() || !state.held().empty() || (options_.lock_step && !state.returned().empty())) {
    return absl::InvalidArgumentError("saved leases: got a state that was not at rest");
  }
  const internal::v1::LeaseTableState::Position& saved = options_.lock_step ? state.by_rank(0) : state.next();
  const Position at{saved.epoch(), saved.begin()};
  if (absl::Status status = CheckPosition(at); !status.ok()) return status;
  for (const v1::Lease& lease : state.returned()) {
    if (absl::Status status = CheckLease(lease); !status.ok()) return status;
  }
  for (const v1::Lease& lease : state.returned()) {
    returned_.push_back(FromProto(lease));
    returned_.back().steps = StepsOf(lease.end() - lease.begin());
  }
  next_id_ = std::max<uint64_t>(state.next_id(), 1);
  next_ = at;
  stream_position_ = FromProto(state.stream());
  by_rank_.assign(options_.workers, at);
  repeated_examples_ = state.repeated_examples();
  return absl::OkStatus();
}

absl::Status LeaseTable::Restore(const internal::v1::LeaseTableState& state) {
  if (state.by_rank_size() != static_cast<int>(options_.workers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("saved leases: got ", state.by_rank_size(), " ranks, want ", options_.workers));
  }
  const auto take = [](const internal::v1::LeaseTableState::Position& at) { return Position{at.epoch(), at.begin()}; };
  std::vector<Position> positions = {take(state.next())};
  for (const internal::v1::LeaseTableState::Position& at : state.by_rank()) positions.push_back(take(at));
  for (const Position& at : positions) {
    if (absl::Status status = CheckPosition(at); !status.ok()) return status;
  }
  std::vector<DataLease> returned;
  for (const v1::Lease& lease : state.returned()) {
    if (absl::Status status = CheckLease(lease); !status.ok()) return status;
    returned.push_back(FromProto(lease));
  }
  std::map<uint64_t, Held> held;
  for (const internal::v1::LeaseTableState::Held& one : state.held()) {
    if (absl::Status status = CheckLease(one.lease()); !status.ok()) return status;
    held[one.lease().id()] = {one.rank(), FromProto(one.lease())};
  }
  // Leases handed out since the state was saved may still be held, so new leases must not get their ids.
  next_id_ = std::max<uint64_t>(state.next_id(), 1) + kForgottenIds;
  next_ = positions[0];
  stream_position_ = FromProto(state.stream());
  by_rank_.assign(positions.begin() + 1, positions.end());
  returned_ = std::move(returned);
  held_ = std::move(held);
  absent_ = {state.absent().begin(), state.absent().end()};
  repeated_examples_ = state.repeated_examples();
  return absl::OkStatus();
}

}  // namespace ballast
