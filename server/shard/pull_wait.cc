// SPDX-License-Identifier: Apache-2.0
#include "server/shard/pull_wait.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// Memory of one waiting call in gRPC and here, measured in docs/decisions/0022-what-waits-is-counted.md.
constexpr uint64_t kBytesPerWait = 16 << 10;
// Memory of a slice's key and of the pointer to the slice, or likewise of a table.
constexpr uint64_t kBytesPerSlice = 16;

}  // namespace

bool Awaited::MayPull(const PullQuery& pull) const {
  return slice_ != nullptr ? slice_->MayPull(pull) : table_->MayPull(pull.step);
}

bool Awaited::MayPullOrRelease(const PullQuery& pull, WaitList::Ticket ticket) const {
  return slice_ != nullptr ? slice_->MayPullOrRelease(pull, ticket) : table_->MayPullOrRelease(pull.step, ticket);
}

void Awaited::Forget(const PullQuery& pull, WaitList::Ticket ticket) const {
  if (slice_ != nullptr) return slice_->Forget(pull, ticket);
  table_->Forget(pull.step, ticket);
}

std::vector<uint32_t> Awaited::Missing(const PullQuery& pull) const {
  return slice_ != nullptr ? slice_->Missing(pull) : table_->Missing(pull.step);
}

std::string Awaited::Describe() const {
  return slice_ != nullptr ? slice_->Describe() : absl::StrCat("rows of \"", name(), "\"");
}

uint64_t PullWait::BytesOf(size_t awaited) { return kBytesPerWait + awaited * kBytesPerSlice; }

bool PullWait::Release(WaitList::Ticket ticket) {
  absl::MutexLock lock(&mutex_);
  if (ended_) return false;
  size_t next = ticket_ == WaitList::kNoTicket ? at_ : at_ + 1;
  ticket_ = ticket;
  while (next < awaited_.size() && awaited_[next].MayPullOrRelease(pull_, ticket)) ++next;
  if (next == awaited_.size()) {
    ended_ = true;
    return true;
  }
  at_ = next;
  return false;
}

void PullWait::End() {
  absl::MutexLock lock(&mutex_);
  room_.Release();
  if (!ended_ && ticket_ != WaitList::kNoTicket) awaited_[at_].Forget(pull_, ticket_);
  ended_ = true;
}

Awaited PullWait::at() const {
  absl::MutexLock lock(&mutex_);
  return awaited_[at_];
}

bool Awaited::MayLackFirstStep(const PullQuery& pull) const {
  return table_ != nullptr && table_->MayLackFirstStep(pull.step);
}

std::string PullWait::Explain() const {
  const Awaited awaited = at();
  const std::string what = absl::StrCat("pull of ", awaited.Describe(), " at step ", pull_.step);
  if (!awaited.HasValues()) return absl::StrCat(what, " waits for SetValues to provide the values");
  const std::vector<uint32_t> missing = awaited.Missing(pull_);
  if (missing.empty()) return absl::StrCat(what, " timed out");
  return absl::StrCat(
      what, " waits for the gradient of worker ", absl::StrJoin(missing, ", "),
      awaited.MayLackFirstStep(pull_)
          ? "; no step has ended there: a table that is declared after training began needs its first_step"
          : "");
}

absl::Status PullWait::AddMissing(const absl::Status& status) const {
  const Awaited awaited = at();
  return WithSubjects(status, {{"workers", absl::StrJoin(awaited.Missing(pull_), ",")},
                               {"step", absl::StrCat(pull_.step)},
                               {"tensor", awaited.name()}});
}

}  // namespace ballast
