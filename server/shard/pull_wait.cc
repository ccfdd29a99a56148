// SPDX-License-Identifier: Apache-2.0
#include "server/shard/pull_wait.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// Memory of one waiting call in gRPC and here, measured in docs/decisions/0022-what-waits-is-counted.md.
constexpr uint64_t kBytesPerWait = 16 << 10;
// Memory of a slice's key and of the pointer to the slice.
constexpr uint64_t kBytesPerSlice = 16;

}  // namespace

uint64_t PullWait::BytesOf(size_t slices) { return kBytesPerWait + slices * kBytesPerSlice; }

bool PullWait::Release(WaitList::Ticket ticket) {
  absl::MutexLock lock(&mutex_);
  if (ended_) return false;
  size_t next = ticket_ == WaitList::kNoTicket ? at_ : at_ + 1;
  ticket_ = ticket;
  while (next < slices_.size() && slices_[next]->MayPullOrRelease(pull_, ticket)) ++next;
  if (next == slices_.size()) {
    ended_ = true;
    return true;
  }
  at_ = next;
  return false;
}

void PullWait::End() {
  absl::MutexLock lock(&mutex_);
  room_.Release();
  if (!ended_ && ticket_ != WaitList::kNoTicket) slices_[at_]->Forget(pull_, ticket_);
  ended_ = true;
}

const Slice& PullWait::at() const {
  absl::MutexLock lock(&mutex_);
  return *slices_[at_];
}

std::string PullWait::Explain() const {
  const Slice& slice = at();
  const std::string what = absl::StrCat("pull of ", slice.Describe(), " at step ", pull_.step);
  if (!slice.HasValues()) return absl::StrCat(what, " waits for SetValues to provide the values");
  const std::vector<uint32_t> missing = slice.Missing(pull_);
  if (missing.empty()) return absl::StrCat(what, " timed out");
  return absl::StrCat(what, " waits for the gradient of worker ", absl::StrJoin(missing, ", "));
}

absl::Status PullWait::AddMissing(const absl::Status& status) const {
  const Slice& slice = at();
  return WithSubjects(status, {{"workers", absl::StrJoin(slice.Missing(pull_), ",")},
                               {"step", absl::StrCat(pull_.step)},
                               {"tensor", slice.tensor()}});
}

}  // namespace ballast
