// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/tables/range/row_rules.h"

namespace ballast {

// Owns the counts of uses of a range's ids that have no row yet. Invariant: the counts depend only on the calls of
// Count and Forget, so a replay has the same, and Restore continues them. Deliberately does not know the rows. Thread
// safety: confined to the thread that holds the range's lock; const methods may run on several threads while no other
// runs.
class UseCounts {
 public:
  // `range_bits`: the leading bits that all hashes share. Null if the rules admit every id at its first use.
  static std::unique_ptr<UseCounts> Make(const RowRules& rules, int range_bits);
  virtual ~UseCounts() = default;

  // Counts uses and returns those of the id so far. Uses that are older than the time's limit do not count.
  virtual uint32_t Count(uint64_t hash, uint32_t uses, const RowTime& time) = 0;

  // The id has a row now.
  virtual void Forget(uint64_t hash) = 0;

  // Ids that wait; an estimate, with a sketch.
  virtual uint64_t waiting() const = 0;
  // Appends to `by_uses`, for 1, 2, ... uses, the number of ids that wait with that many; nothing if not known.
  virtual void CountByUses(std::vector<uint64_t>& by_uses) const = 0;
  virtual uint64_t memory_bytes() const = 0;

  virtual std::string Save() const = 0;
  // DATA_LOSS if the bytes are not from Save with the same rules.
  virtual absl::Status Restore(absl::string_view bytes) = 0;
};

}  // namespace ballast
