// SPDX-License-Identifier: Apache-2.0
#include "server/shard/pull_wait.h"

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

}  // namespace ballast
