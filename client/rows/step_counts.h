// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace ballast {

// Owns the numbers of messages of rows that a worker has sent in each step that it has not ended, by shard; the step's
// last message to a shard carries its number. Deliberately does not know what the messages carry. Thread safety: none.
class StepCounts {
 public:
  // Steps that may be open at once; of more, the oldest is forgotten, as at the servers.
  static constexpr size_t kMaxOpenSteps = 64;

  void Add(uint64_t step, uint32_t shard, uint32_t messages) {
    std::vector<uint32_t>& counts = steps_[step];
    if (counts.size() <= shard) counts.resize(shard + 1);
    counts[shard] += messages;
    if (steps_.size() > kMaxOpenSteps) steps_.erase(steps_.begin());
  }

  // Takes back a message that the shard refused.
  void Remove(uint64_t step, uint32_t shard) {
    const auto found = steps_.find(step);
    if (found != steps_.end() && shard < found->second.size() && found->second[shard] > 0) --found->second[shard];
  }

  // Ends the step and returns its counts by shard; shards after the last one have none.
  std::vector<uint32_t> Take(uint64_t step) {
    auto found = steps_.extract(step);
    return found.empty() ? std::vector<uint32_t>() : std::move(found.mapped());
  }

 private:
  std::map<uint64_t, std::vector<uint32_t>> steps_;
};

}  // namespace ballast
