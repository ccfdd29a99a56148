// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/storage.pb.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "server/shard/shard_state.h"

namespace ballast {

// Owns a standby's progress: the data sent to it and processed by it, and since when it processes nothing.
// Thread safety: none; guarded by its journal.
class TransferProgress {
 public:
  void Begin(absl::Time now);

  // SetTotal: bytes of the shard's weights and slots. AddDone: that many more of them were sent.
  void SetTotal(uint64_t bytes) { total_ = bytes; }
  void AddDone(uint64_t bytes) { done_ += bytes; }

  // Sent: that much more was sent. Taken: the total that the standby processed. Units as in ReplicateResponse.taken.
  void Sent(uint64_t sent, absl::Time now);
  void Taken(uint64_t taken, absl::Time now);

  // Returns how long the standby has processed nothing although sent data is outstanding.
  absl::Duration Silence(absl::Time now) const;

  // Fills in the byte counts and the rate; `queued`: bytes of changes that wait to be sent.
  void Fill(uint64_t queued, absl::Time now, v1::StandbyReport& report);

  // Returns a log line, at most one every five seconds.
  std::optional<std::string> Line(const v1::StandbyReport& report, absl::Time now);

  absl::Duration took(absl::Time now) const { return now - begun_; }

 private:
  absl::Time begun_, progressed_, logged_;
  uint64_t total_ = 0, done_ = 0, sent_ = 0, taken_ = 0;
  // The rate is measured between two marks.
  absl::Time marked_;
  uint64_t taken_at_mark_ = 0;
  double rate_ = 0;
};

// A slice to send.
struct OwnedSlice {
  SliceKey key;
  uint64_t elements = 0;
};

// Owns the set of slices that a transfer has sent, which decides what a standby needs of a change.
// Thread safety: none; guarded by its journal.
class SentSlices {
 public:
  void Begin();
  void Add(absl::Span<const SliceKey> slices) { sent_.insert(slices.begin(), slices.end()); }
  // Tensors were declared; their slices must be sent too.
  void OnDeclaration() { declared_ = true; }
  // Returns true, and ends the transfer, if no tensors were declared since Begin or the last call.
  bool TryEnd();
  // Returns the slices that were not sent.
  std::vector<OwnedSlice> Unsent(std::vector<OwnedSlice> slices) const;
  // Ends the transfer.
  void Clear();

  // True for each gradient of a push whose slice was sent. Empty: send all.
  std::vector<bool> Wanted(const internal::v1::ShardRecord& record) const;

 private:
  bool transferring_ = false;
  bool declared_ = false;
  absl::flat_hash_set<SliceKey> sent_;
};

}  // namespace ballast
