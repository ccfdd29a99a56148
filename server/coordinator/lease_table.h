// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/coordinator_state.pb.h"
#include "common/job/data_lease.h"

namespace ballast {

// Hands out each epoch's training data in leases, so that every example of an epoch is seen exactly once.
//
// In lock step (policies sync and local SGD) an epoch goes by in rounds: each round is cut into one range for each
// rank, all with the same number of steps, and a rank's ranges depend on nothing but the job, so that runs repeat. A
// rank that has nothing left in the last round gets an empty range and keeps step. While a rank is absent its ranges go
// to whoever is done with the same round. Otherwise ranges go to whoever asks, and a next epoch begins as soon as the
// last range of the one before is taken.
//
// Invariant: taken, returned and untaken ranges of an epoch are disjoint and cover it. What a worker had taken when it
// was lost is handed out again, and counted.
// Thread safety: none; the coordinator guards it.
class LeaseTable {
 public:
  struct Options {
    uint64_t examples = 0;
    uint32_t epochs = 0;
    uint32_t workers = 0;
    uint32_t batch_size = 0;
    bool lock_step = true;
    // That a worker makes one push from; but for an epoch's end a lease is whole pushes.
    uint64_t batches_per_push = 1;
  };

  explicit LeaseTable(const Options& options);

  // The next range for `rank`; nothing when there is none now.
  std::optional<DataLease> Acquire(uint32_t rank);

  // A lease that `rank` was given and does not name among those it holds: the answer was lost. Hand it out again.
  std::optional<DataLease> Unanswered(uint32_t rank, absl::Span<const uint64_t> held) const;

  // OK again for a lease that was reported before. FAILED_PRECONDITION for one that `rank` does not hold.
  absl::Status Complete(uint32_t rank, uint64_t id);

  // Takes back the unfinished leases of a worker that is gone; others get them, and in lock step its share from here
  // on.
  void Release(uint32_t rank);
  // Gives a rank that was released its share again.
  void Return(uint32_t rank);

  // From now on no more is handed out than brings all ranks to the same place: soon nothing is held.
  void Hold();
  // Since Hold: all ranks are there, and what was handed out was reported done.
  bool AtRest() const;
  void Release() { limit_.reset(); }

  // Of leases that were handed out again.
  uint64_t repeated_examples() const { return repeated_examples_; }

  internal::v1::LeaseBookState Export() const;
  // Goes on from where another book of the same options was. INVALID_ARGUMENT where it cannot have been one. Where the
  // state is older than the book was, leases that it has forgotten may be reported done, and their data is handed out
  // again.
  absl::Status Restore(const internal::v1::LeaseBookState& state);
  // Goes on from where another book of the same data was at rest; workers, batch size and epochs may differ.
  // INVALID_ARGUMENT where that cannot have been.
  absl::Status Resume(const internal::v1::LeaseBookState& state);

  // Everything was reported done.
  bool Finished() const;
  // "worker 1, epoch 3, examples 100 to 200": unfinished leases, a few of them.
  std::string Outstanding() const;
  uint64_t steps_per_epoch() const;

 private:
  // More than a job hands out between a state and the next that is sure to last.
  static constexpr uint64_t kForgottenIds = 1 << 20;

  struct Held {
    uint32_t rank = 0;
    DataLease lease;
  };
  // Where a rank stands, in lock step.
  struct Position {
    uint32_t epoch = 0;
    uint64_t begin = 0;
    friend auto operator<=>(const Position&, const Position&) = default;
  };

  // Of the job's examples, all epochs together.
  double ShareAt(const Position& at) const;
  // What a lease says of the job's data, out of lock step: the share reported done, and the share handed out.
  void SetShares(DataLease& lease) const;
  bool Done(const Position& at) const { return at.epoch >= options_.epochs; }
  DataLease CutShare(uint32_t rank);
  std::optional<DataLease> NextInLockStep(uint32_t rank);
  std::optional<DataLease> NextForAnyone();
  // The first of those that were returned, where it comes before `limit`.
  std::optional<DataLease> TakeReturned(const Position& limit);
  uint32_t StepsOf(uint64_t examples) const;
  absl::Status CheckLease(const v1::Lease& lease) const;
  absl::Status CheckPosition(const Position& at) const;

  const Options options_;
  // At the most.
  const uint64_t batches_per_lease_;
  uint64_t next_id_ = 1;
  std::vector<Position> by_rank_;
  Position next_;
  std::vector<DataLease> returned_;
  std::map<uint64_t, Held> held_;
  std::set<uint32_t> absent_;
  // While it holds: in lock step, where the ranks meet.
  std::optional<Position> limit_;
  uint64_t repeated_examples_ = 0;
};

}  // namespace ballast
