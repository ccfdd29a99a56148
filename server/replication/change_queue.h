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

// Owns the changes that wait to be sent to a standby, and the responses held back until the link has caught up.
// Invariant: the changes never exceed the byte limit. A response is held back while more than `pace_bytes` are queued
// before it, so clients push no faster than the link carries. Deliberately does not know streams. Thread safety:
// none; guarded by its journal.
class ChangeQueue {
 public:
  using Done = std::function<void(absl::Status)>;
  struct Change {
    uint64_t position = 0;
    std::string bytes;
  };

  ChangeQueue(uint64_t max_bytes, uint64_t pace_bytes) : max_bytes_(max_bytes), pace_bytes_(pace_bytes) {}

  // Applies to responses held back from now on.
  void set_pace_bytes(uint64_t bytes) { pace_bytes_ = bytes; }

  // RESOURCE_EXHAUSTED with STANDBY_BEHIND and a retry delay, if that many more bytes exceed the limit.
  absl::Status CheckRoom(uint64_t bytes) const;

  // Positions ascend by one.
  void Push(uint64_t position, std::string bytes);

  // Removes and returns the next change, if any. Adds to `released` the responses that are no longer held back.
  std::optional<Change> Pop(std::vector<Done>& released);

  // Holds back the response to the change at that position. Returns false and leaves `done` if that is not needed.
  bool Defer(uint64_t position, Done& done);

  // Releases all responses.
  std::vector<Done> Release();
  // Releases all responses and drops all changes.
  std::vector<Done> Clear();

  bool empty() const { return changes_.empty(); }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Queued {
    Change change;
    // Total bytes ever queued, up to the end of this change.
    uint64_t end = 0;
  };

  const uint64_t max_bytes_;
  uint64_t pace_bytes_;
  std::deque<Queued> changes_;
  uint64_t bytes_ = 0;
  // Total bytes ever removed.
  uint64_t sent_ = 0;
  // By the `end` of their changes.
  std::multimap<uint64_t, Done> held_back_;
};

}  // namespace ballast
