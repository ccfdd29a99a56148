// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ballast {

// Changes that wait to be sent to a standby, and the answers that are held back until the link has caught up.
// Invariant: changes never have more bytes than the limit. An answer is held back while more than `pace_bytes` are
// queued before it, so clients that wait for answers push no faster than the link carries.
// Knows nothing of streams. Thread safety: none; its journal guards it.
class ChangeQueue {
 public:
  using Done = std::function<void(absl::Status)>;
  struct Change {
    uint64_t position = 0;
    std::string bytes;
  };

  ChangeQueue(uint64_t max_bytes, uint64_t pace_bytes) : max_bytes_(max_bytes), pace_bytes_(pace_bytes) {}

  // From now on, for the answers that come.
  void set_pace_bytes(uint64_t bytes) { pace_bytes_ = bytes; }

  // RESOURCE_EXHAUSTED, with STANDBY_BEHIND and the delay of a retry, if there is no room for so many bytes more.
  absl::Status CheckRoom(uint64_t bytes) const;

  // Positions ascend by one.
  void Push(uint64_t position, std::string bytes);

  // The next to send; nothing if none waits. Adds to `released` the answers that are not held back any more.
  std::optional<Change> Pop(std::vector<Done>& released);

  // Holds back the answer to the change at that position. False, and `done` stays, if it need not be held back.
  bool HoldBack(uint64_t position, Done& done);

  // Holds nothing back any more.
  std::vector<Done> Release();
  // The same, and forgets all changes.
  std::vector<Done> Clear();

  bool empty() const { return changes_.empty(); }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Queued {
    Change change;
    // Of all changes that were ever queued, up to this one's end.
    uint64_t end = 0;
  };

  const uint64_t max_bytes_;
  uint64_t pace_bytes_;
  std::deque<Queued> changes_;
  uint64_t bytes_ = 0;
  // Of all changes that were ever taken out.
  uint64_t sent_ = 0;
  // By where their changes end.
  std::multimap<uint64_t, Done> held_back_;
};

}  // namespace ballast
