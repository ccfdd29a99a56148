// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"

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

}  // namespace ballast
