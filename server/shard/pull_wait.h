// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/concurrency/wait_list.h"
#include "server/memory/byte_budget.h"
#include "server/tensors/slice.h"

namespace ballast {

// One pull that waits until each of its slices may be pulled. Invariant: it waits at one slice at a time, the first
// that has not allowed it yet, so what the slices hold of it does not grow with their number; and at none once it has
// ended. Deliberately does not know how it ends. Thread safety: all methods may be called from any thread.
class PullWait {
 public:
  // What the server holds of a pull of so many slices while it waits, the call included.
  static uint64_t BytesOf(size_t slices);

  // `first`: the slices before it have allowed the pull already. `room`: its memory.
  PullWait(const PullQuery& pull, std::vector<Slice*> slices, size_t first, ByteBudget::Reservation room)
      : pull_(pull), slices_(std::move(slices)), room_(std::move(room)), at_(first) {}

  // To be called once with the wait's ticket, and again each time that a slice has released that: goes on to the next
  // slice that does not allow the pull, and waits there. True if there is none.
  bool Release(WaitList::Ticket ticket);

  // Waits no more, and holds no memory.
  void End();

  // The slice that it waits at, or would begin to.
  const Slice& at() const;
  const PullQuery& pull() const { return pull_; }

 private:
  const PullQuery pull_;
  const std::vector<Slice*> slices_;
  mutable absl::Mutex mutex_;
  ByteBudget::Reservation room_ ABSL_GUARDED_BY(mutex_);
  // Below the number of slices.
  size_t at_ ABSL_GUARDED_BY(mutex_);
  // kNoTicket until it waits at a slice for the first time.
  WaitList::Ticket ticket_ ABSL_GUARDED_BY(mutex_) = WaitList::kNoTicket;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ballast
