// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ballast {

// Owns the times by which a table's rows expire: ticks, about 32 of them in the lifetime of a row, each with the
// table's clock then. Invariant: the ticks depend only on the calls of Add, and nothing but the ticks decides what has
// expired, so a replay and a copy decide the same. Thread safety: none; guarded by its table.
class TableTicks {
 public:
  struct Tick {
    uint64_t unix_seconds = 0;
    uint64_t clock = 0;
  };

  // `lifetime`: in seconds; 0: rows live forever.
  explicit TableTicks(uint32_t lifetime) : lifetime_(lifetime) {}

  // A push came at that time. Times that are not later than the last tick's, or only a little later, change nothing.
  void Add(uint64_t unix_seconds, uint64_t clock) {
    if (lifetime_ == 0) return;
    if (!ticks_.empty() && unix_seconds < ticks_.back().unix_seconds + std::max(lifetime_ / 32, 1u)) return;
    ticks_.push_back({unix_seconds, clock});
    Prune();
  }

  // Rows whose last step is before this one have expired.
  uint64_t live_since() const {
    const bool old = !ticks_.empty() && ticks_.front().unix_seconds + lifetime_ <= ticks_.back().unix_seconds;
    return old ? ticks_.front().clock : 0;
  }

  const std::vector<Tick>& Save() const { return ticks_; }
  void Restore(std::vector<Tick> ticks) {
    if (lifetime_ > 0) ticks_ = std::move(ticks);
  }

 private:
  // Keeps the newest tick that is as old as the lifetime, and all after it.
  void Prune() {
    const uint64_t now = ticks_.back().unix_seconds;
    size_t keep = 0;
    while (keep + 1 < ticks_.size() && ticks_[keep + 1].unix_seconds + lifetime_ <= now) ++keep;
    ticks_.erase(ticks_.begin(), ticks_.begin() + keep);
  }

  const uint32_t lifetime_;
  // Ascending.
  std::vector<Tick> ticks_;
};

}  // namespace ballast
