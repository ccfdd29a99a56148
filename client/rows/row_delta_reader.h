// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "ballast/v1/table.pb.h"

namespace ballast {

// The change of one range of a table. First the evicted rows are removed, then the others are set.
struct RangeUpdate {
  uint32_t table_id = 0;
  uint32_t range = 0;
  // The rows are all that the range has; others that a copy has are removed.
  bool replaces = false;
  std::vector<uint64_t> evicted;
  // Ascending by hash, and the values of each, [ids, dim].
  std::vector<uint64_t> ids;
  std::vector<float> values;
};

// Owns the positions of a table's ranges as a watcher has them, and checks each delta against them. Invariant: a range
// with a position has had every delta up to it, each once, in order and undamaged. Deliberately does not know the
// values of rows. Thread safety: none.
class RowDeltaReader {
 public:
  // Ranges [first, first + count) of the table, whose spec is valid.
  RowDeltaReader(const v1::TableSpec& spec, uint32_t first, uint32_t count);

  // Takes the next delta. Returns an update that is complete; nullopt if another part of it follows. DATA_LOSS for a
  // delta that does not follow on the last one, or whose contents are not what its sender sent; the range then has no
  // position, until it is sent whole.
  absl::StatusOr<std::optional<RangeUpdate>> Take(const v1::RowDelta& delta);

  // Forgets the parts of deltas that are not complete, because their stream has ended.
  void EndStream();

  // The ranges that have a position.
  std::vector<v1::RangePosition> positions() const;

  // Number of ranges that were complete at some time.
  uint32_t received() const { return received_; }
  // True if the range, one of this reader's, was complete at some time.
  bool Received(uint32_t range) const { return ranges_[range - first_].received; }
  uint32_t count() const { return static_cast<uint32_t>(ranges_.size()); }

 private:
  struct Range {
    // 0: none.
    uint64_t position = 0;
    uint64_t chain = 0;
    bool received = false;
    // The parts so far of a delta, where it leads, and the chain after them.
    std::optional<RangeUpdate> parts;
    uint64_t to_position = 0;
    uint64_t parts_chain = 0;
  };

  absl::Status Check(const v1::RowDelta& delta, const Range& range) const;
  // Appends the ids if they are in the range and ascend by hash.
  absl::Status AddIds(const v1::RowDelta& delta, RangeUpdate& to) const;

  const uint32_t table_id_;
  const uint32_t dim_;
  const int range_bits_;
  const uint32_t first_;
  std::vector<Range> ranges_;
  uint32_t received_ = 0;
};

}  // namespace ballast
