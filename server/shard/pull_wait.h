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
#include "server/tables/table.h"
#include "server/tensors/slice.h"

namespace ballast {

// A slice or a table that a pull may wait at.
class Awaited {
 public:
  Awaited(Slice* slice) : slice_(slice) {}  // NOLINT: implicit
  Awaited(Table* table) : table_(table) {}  // NOLINT: implicit

  // See Slice.
  bool MayPull(const PullQuery& pull) const;
  bool MayPullOrRelease(const PullQuery& pull, WaitList::Ticket ticket) const;
  void Forget(const PullQuery& pull, WaitList::Ticket ticket) const;
  std::vector<uint32_t> Missing(const PullQuery& pull) const;
  // See Table.
  bool MayLackFirstStep(const PullQuery& pull) const;
  bool HasValues() const { return slice_ == nullptr || slice_->HasValues(); }
  std::string Describe() const;
  const std::string& name() const { return slice_ != nullptr ? slice_->tensor() : table_->spec().name(); }

 private:
  // One of them is set.
  Slice* slice_ = nullptr;
  Table* table_ = nullptr;
};

// Owns one pull that waits until each of its slices or tables may be pulled. Invariant: it waits at one of them at a
// time, the first that does not allow it yet, so their memory for it does not grow with their number; after the end, at
// none. Deliberately does not know how the wait ends. Thread safety: all methods may be called from any thread.
class PullWait {
 public:
  // Memory in bytes that a waiting pull of that many slices or tables uses in the server, including the call.
  static uint64_t BytesOf(size_t awaited);

  // `first`: index of the first one that may not allow the pull yet. `room`: the memory reserved for the wait.
  PullWait(const PullQuery& pull, std::vector<Awaited> awaited, size_t first, ByteBudget::Reservation room)
      : pull_(pull), awaited_(std::move(awaited)), room_(std::move(room)), at_(first) {}

  // Call once with the wait's ticket, then each time that the ticket is released. Waits at the next one that does not
  // allow the pull; true if there is none.
  bool Release(WaitList::Ticket ticket);

  // Stops waiting and releases the memory.
  void End();

  // Says why the pull waits, for a timeout.
  std::string Explain() const;
  // Returns the workers that the pull waits for.
  std::vector<uint32_t> missing() const { return at().Missing(pull_); }
  // Adds the workers, the step and the tensor that the pull waits for to an error.
  absl::Status AddMissing(const absl::Status& status) const;

 private:
  // The one at which the pull waits, or will wait first.
  Awaited at() const;

  const PullQuery pull_;
  const std::vector<Awaited> awaited_;
  mutable absl::Mutex mutex_;
  ByteBudget::Reservation room_ ABSL_GUARDED_BY(mutex_);
  // Always below the number of what is awaited.
  size_t at_ ABSL_GUARDED_BY(mutex_);
  // kNoTicket until the first call of Release.
  WaitList::Ticket ticket_ ABSL_GUARDED_BY(mutex_) = WaitList::kNoTicket;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ballast
