// SPDX-License-Identifier: Apache-2.0
#include "server/lease_book.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/job_length.h"

namespace ballast {
namespace {

uint64_t DivideUp(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

}  // namespace

LeaseBook::LeaseBook(const Options& options)
    : options_(options), batches_per_lease_(BatchesPerLease(options.batches_per_push)), by_rank_(options.workers) {}

uint32_t LeaseBook::StepsOf(uint64_t examples) const { return DivideUp(examples, options_.batch_size); }

std::optional<DataLease> LeaseBook::NextInLockStep(uint32_t rank) {
  Position& at = by_rank_[rank];
  if (at.epoch >= options_.epochs) return std::nullopt;
  const uint64_t left = options_.examples - at.begin;
  const uint64_t round = std::min(left, options_.workers * batches_per_lease_ * options_.batch_size);
  // The first (round % workers) ranks get one example more.
  const uint64_t share = round / options_.workers;
  const uint64_t more = round % options_.workers;
  DataLease lease;
  lease.epoch = at.epoch;
  lease.begin = at.begin + rank * share + std::min<uint64_t>(rank, more);
  lease.end = lease.begin + share + (rank < more ? 1 : 0);
  lease.steps = StepsOf(share + (more > 0 ? 1 : 0));
  at.begin += round;
  if (at.begin == options_.examples) at = {at.epoch + 1, 0};
  return lease;
}

std::optional<DataLease> LeaseBook::NextForAnyone() {
  if (!returned_.empty()) {
    DataLease lease = returned_.back();
    returned_.pop_back();
    return lease;
  }
  if (next_.epoch >= options_.epochs) return std::nullopt;
  const uint64_t left = options_.examples - next_.begin;
  // Towards the end of an epoch ranges get smaller, so that workers finish it at about the same time.
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

std::optional<DataLease> LeaseBook::Acquire(uint32_t rank) {
  std::optional<DataLease> lease = options_.lock_step ? NextInLockStep(rank) : NextForAnyone();
  if (!lease.has_value()) return lease;
  lease->id = next_id_++;
  held_[lease->id] = {rank, *lease};
  return lease;
}

std::optional<DataLease> LeaseBook::Unanswered(uint32_t rank, absl::Span<const uint64_t> held) const {
  for (const auto& [id, own] : held_) {
    if (own.rank == rank && !absl::c_linear_search(held, id)) return own.lease;
  }
  return std::nullopt;
}

absl::Status LeaseBook::Complete(uint32_t rank, uint64_t id) {
  const auto held = held_.find(id);
  if (id == 0 || id >= next_id_) {
    return absl::FailedPreconditionError(absl::StrCat("lease ", id, " was never handed out"));
  }
  if (held == held_.end()) return absl::OkStatus();
  if (held->second.rank != rank) {
    return absl::FailedPreconditionError(
        absl::StrCat("lease ", id, " is held by worker ", held->second.rank, ", got a report of worker ", rank));
  }
  held_.erase(held);
  return absl::OkStatus();
}

void LeaseBook::Release(uint32_t rank) {
  for (auto held = held_.begin(); held != held_.end();) {
    if (held->second.rank != rank) {
      ++held;
      continue;
    }
    returned_.push_back(held->second.lease);
    held = held_.erase(held);
  }
}

bool LeaseBook::Finished() const {
  if (!held_.empty() || !returned_.empty()) return false;
  if (!options_.lock_step) return next_.epoch >= options_.epochs;
  return std::all_of(by_rank_.begin(), by_rank_.end(), [&](const Position& at) { return at.epoch >= options_.epochs; });
}

std::string LeaseBook::Outstanding() const {
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

uint64_t LeaseBook::steps_per_epoch() const {
  if (!options_.lock_step) return DivideUp(options_.examples, options_.batch_size);
  const uint64_t round = options_.workers * batches_per_lease_ * options_.batch_size;
  const uint64_t rest = options_.examples % round;
  return options_.examples / round * batches_per_lease_ + StepsOf(DivideUp(rest, options_.workers));
}

}  // namespace ballast
