// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"

namespace ballast {

// How far a standby is: what was sent to it, what it has taken in, and since when it takes in nothing.
// Thread safety: none; its journal guards it.
class TransferProgress {
 public:
  void Begin(absl::Time now);

  // The shard has so many bytes of weights and slots, and so many more of them were sent.
  void SetTotal(uint64_t bytes) { total_ = bytes; }
  void AddDone(uint64_t bytes) { done_ += bytes; }

  // So much more is on its way; the standby has taken in so much in all. In the unit of ReplicateResponse.taken.
  void Sent(uint64_t sent, absl::Time now);
  void Taken(uint64_t taken, absl::Time now);

  // How long the standby has taken in nothing, though something is on its way to it.
  absl::Duration Silence(absl::Time now) const;

  // Fills in bytes and rate; `queued`: bytes of changes that wait to be sent.
  void Fill(uint64_t queued, absl::Time now, v1::StandbyReport& report);

  // A line for the log, at most one in five seconds.
  std::optional<std::string> Line(const v1::StandbyReport& report, absl::Time now);

  absl::Duration took(absl::Time now) const { return now - begun_; }

 private:
  absl::Time begun_, progressed_, logged_;
  uint64_t total_ = 0, done_ = 0, sent_ = 0, taken_ = 0;
  // The rate is measured from one mark to the next.
  absl::Time marked_;
  uint64_t taken_at_mark_ = 0;
  double rate_ = 0;
};

}  // namespace ballast
