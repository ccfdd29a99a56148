// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/concurrency/wait_list.h"
#include "server/memory/byte_budget.h"
#include "server/tensors/slice.h"

namespace ballast {

// Owns one pull that waits until each of its slices may be pulled. Invariant: it waits at one slice at a time, the
// first that does not allow it yet, so the slices' memory for it does not grow with their number; after the end, at
// none. Deliberately does not know how the wait ends. Thread safety: all methods may be called from any thread.
class PullWait {
 public:
  // Memory in bytes that a waiting pull of that many slices uses in the server, including the call.
  static uint64_t BytesOf(size_t slices);

  // `first`: index of the first slice that may not allow the pull yet. `room`: the memory reserved for the wait.
  PullWait(const PullQuery& pull, std::vector<Slice*> slices, size_t first, ByteBudget::Reservation room)
      : pull_(pull), slices_(std::move(slices)), room_(std::move(room)), at_(first) {}

  // Call once with the wait's ticket, then each time that a slice releases the ticket. Waits at the next slice that
  // does not allow the pull; true if there is none.
  bool Release(WaitList::Ticket ticket);

  // Stops waiting and releases the memory.
  void End();

  // Says why the pull waits, for a timeout.
  std::string Explain() const;
  // Adds the workers, the step and the tensor that the pull waits for to an error.
  absl::Status AddMissing(const absl::Status& status) const;

 private:
  // The slice at which the pull waits, or will wait first.
  const Slice& at() const;

  const PullQuery pull_;
  const std::vector<Slice*> slices_;
  mutable absl::Mutex mutex_;
  ByteBudget::Reservation room_ ABSL_GUARDED_BY(mutex_);
  // Always below the number of slices.
  size_t at_ ABSL_GUARDED_BY(mutex_);
  // kNoTicket until the first call of Release.
  WaitList::Ticket ticket_ ABSL_GUARDED_BY(mutex_) = WaitList::kNoTicket;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ballast
