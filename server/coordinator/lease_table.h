// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/coordinator_state.pb.h"
#include "common/job/data_lease.h"

namespace ballast {

// Owns the leases of a job's training data and hands them out so that every example of an epoch is seen exactly once.
//
// In lock step (policies sync and local SGD) an epoch is a sequence of rounds. Each round is cut into one range per
// rank, all with the same number of steps, and a rank's ranges depend on the job only, so that runs are reproducible.
// A rank without examples in the last round gets an empty range and keeps step. The ranges of an absent rank go to
// ranks that have finished the same round. Without lock step any rank gets the next range, and the next epoch begins
// as soon as the last range of an epoch is taken.
//
// The data of a stream has no end: workers look for rows at the stream's position and claim what they find, which
// becomes a lease and moves the position. An epoch is then a number of examples.
//
// Invariant: the taken, returned and untaken ranges of an epoch are disjoint and cover it. Ranges that a lost worker
// held are handed out again, and counted. Deliberately does not know why a rank is absent.
// Thread safety: none; the coordinator guards it.
class LeaseTable {
 public:
  struct Options {
    uint64_t examples = 0;
    uint32_t epochs = 0;
    uint32_t workers = 0;
    uint32_t batch_size = 0;
    bool lock_step = true;
    // Batches per push of a worker. A lease is a multiple of it, except at the end of an epoch.
    uint64_t batches_per_push = 1;
    // The data is a stream with epochs of `examples`; not in lock step.
    bool stream = false;
  };

  explicit LeaseTable(const Options& options);

  // Returns the next range for `rank`; nothing if there is none now. From a stream only a returned one.
  std::optional<DataLease> Acquire(uint32_t rank);

  // The following are for streams. Position of the first row that nobody has claimed.
  const StreamPosition& stream_position() const { return stream_position_; }
  // Limit on the examples of a claim, at least 1 before the end of the last epoch.
  uint64_t MaxStreamExamples() const;
  // Returns a lease of rows that begin at the position, or of the first rows of a later file; nothing if the rows are
  // elsewhere, or none are handed out now. INVALID_ARGUMENT for an impossible span.
  absl::StatusOr<std::optional<DataLease>> Claim(uint32_t rank, const StreamSpan& span);

  // Returns a lease of `rank` that is not in `held`: the response with it was lost, and it must be sent again.
  std::optional<DataLease> Unanswered(uint32_t rank, absl::Span<const uint64_t> held) const;

  // OK if the lease was already reported. FAILED_PRECONDITION if `rank` does not hold it.
  absl::Status Complete(uint32_t rank, uint64_t id);

  // Takes back the unfinished leases of a lost worker for others; in lock step they also get its later ranges.
  void Release(uint32_t rank);
  // Gives a released rank its ranges again.
  void Return(uint32_t rank);

  // From now on hands out only the ranges that bring all ranks to the same position, so that soon none is held.
  void Hold();
  // True if, since Hold, all ranks have reached that position and all leases were reported done.
  bool AtRest() const;
  // Has no effect after End.
  void Release();

  // In lock step: hands out data of at most the first `epochs` epochs for now.
  void Open(uint32_t epochs) { open_epochs_ = std::min(epochs, options_.epochs); }
  // Returns the number of epochs after which all wait for Open, if every lease before them was reported done; 0: none.
  uint32_t AwaitsOpen() const;
  // Ends the job before its last epoch: as Hold, for good.
  void End();
  bool ended() const { return ended_; }
  // True if everything that was handed out so far was reported done.
  bool all_reported() const { return held_.empty() && returned_.empty(); }
  // Number of epochs of which some data was handed out.
  uint32_t EpochsBegun() const;

  // Number of examples in leases that were handed out again.
  uint64_t repeated_examples() const { return repeated_examples_; }

  internal::v1::LeaseTableState Export() const;
  // Restores the state of a table with the same options; INVALID_ARGUMENT if it cannot be one. The state may be older
  // than the table was: leases handed out since may be reported done, and their data is handed out again.
  absl::Status Restore(const internal::v1::LeaseTableState& state);
  // Continues from the state of a table at rest for the same data; workers, batch size and epochs may differ.
  // INVALID_ARGUMENT if it cannot be one.
  absl::Status Resume(const internal::v1::LeaseTableState& state);

  // True if all data was reported done, or all that was handed out before End.
  bool Finished() const;
  // Names up to four unfinished leases: "worker 1 (epoch 3, examples 100 to 200)".
  std::string Outstanding() const;
  uint64_t steps_per_epoch() const;
  // Number of epochs of which all data was reported done.
  uint32_t epochs_done() const;

 private:
  // More leases than a job hands out between two synced states.
  static constexpr uint64_t kForgottenIds = 1 << 20;

  struct Held {
    uint32_t rank = 0;
    DataLease lease;
  };
  // A position in the job's data.
  struct Position {
    uint32_t epoch = 0;
    uint64_t begin = 0;
    friend auto operator<=>(const Position&, const Position&) = default;
  };

  // Returns the fraction of all examples of all epochs before that position.
  double ShareAt(const Position& at) const;
  // Without lock step: sets the fractions of the job's data that are done when the rank's other leases are, and handed
  // out.
  void SetShares(uint32_t rank, DataLease& lease) const;
  bool Done(const Position& at) const { return at.epoch >= options_.epochs; }
  DataLease CutShare(uint32_t rank);
  std::optional<DataLease> NextInLockStep(uint32_t rank);
  std::optional<DataLease> NextForAnyone();
  absl::Status CheckSpan(const StreamSpan& span) const;
  // Gives the lease an id and `rank` as its holder.
  DataLease Grant(uint32_t rank, DataLease lease);
  uint64_t MaxLeaseExamples() const { return batches_per_lease_ * options_.batch_size; }
  // Returns the first returned lease if it comes before `limit`.
  std::optional<DataLease> TakeReturned(const Position& limit);
  uint32_t StepsOf(uint64_t examples) const;
  absl::Status CheckLease(const v1::Lease& lease) const;
  absl::Status CheckPosition(const Position& at) const;

  const Options options_;
  // An upper limit.
  const uint64_t batches_per_lease_;
  uint64_t next_id_ = 1;
  std::vector<Position> by_rank_;
  Position next_;
  StreamPosition stream_position_;
  std::vector<DataLease> returned_;
  std::map<uint64_t, Held> held_;
  std::set<uint32_t> absent_;
  // Set from Hold to Release; in lock step, the position at which the ranks meet.
  std::optional<Position> limit_;
  bool ended_ = false;
  uint32_t open_epochs_;
  uint64_t repeated_examples_ = 0;
};

}  // namespace ballast
