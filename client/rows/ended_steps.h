// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

namespace ballast {

// Owns how many steps of rows a worker has ended at each shard, as far as the shard has acknowledged it. A shard that
// lost the end of its log learns the number from the worker. Invariant: no step counts while a message of it, or of an
// earlier step, is not acknowledged. Deliberately does not know what the messages carry. Thread safety: none.
class EndedSteps {
 public:
  // The worker sends so many messages of a step.
  void Send(uint64_t step, uint32_t shard, uint32_t messages) {
    if (messages == 0) return;
    At(shard).in_flight[step] += messages;
    At(shard).first = std::min(At(shard).first, step);
  }

  // The worker sends the last message of the step.
  void End(uint64_t step, uint32_t shard) { At(shard).sent = std::max(At(shard).sent, step + 1); }

  // The shard has acknowledged a message, or refused it. A step that it has not acknowledged whole has not ended.
  // Returns true if the worker has now ended more steps there.
  bool Finish(uint64_t step, uint32_t shard, bool acknowledged) {
    Shard& at = At(shard);
    if (!acknowledged) at.sent = std::min(at.sent, step);
    const auto messages = at.in_flight.find(step);
    if (messages != at.in_flight.end() && --messages->second == 0) at.in_flight.erase(messages);
    const uint64_t first_open = at.in_flight.empty() ? at.sent : at.in_flight.begin()->first;
    const uint64_t before = at.ended;
    const uint64_t ended = std::min(at.sent, first_open);
    // Steps before the first are not this worker's to report.
    if (ended > at.first) at.ended = std::max(at.ended, ended);
    return at.ended > before;
  }

  // One more than the last step that has ended there; 0 before the first.
  uint64_t count(uint32_t shard) const { return shard < shards_.size() ? shards_[shard].ended : 0; }

 private:
  struct Shard {
    // Messages that are not acknowledged, by step.
    std::map<uint64_t, uint32_t> in_flight;
    // Steps whose last message was sent, and those of which all messages are acknowledged.
    uint64_t sent = 0, ended = 0;
    // The earliest step of which a message was sent.
    uint64_t first = std::numeric_limits<uint64_t>::max();
  };

  Shard& At(uint32_t shard) {
    if (shards_.size() <= shard) shards_.resize(shard + 1);
    return shards_[shard];
  }

  // By rank.
  std::vector<Shard> shards_;
};

}  // namespace ballast
