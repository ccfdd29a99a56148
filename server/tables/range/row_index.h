// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "server/tables/range/segmented_array.h"

namespace ballast {

// Owns the map from hashes to places of one range's rows, in lines of one cache line each. A hash's home line is
// proportional to the hash, so ascending hashes visit the lines in order; from its home, a hash goes to the first line
// with a free entry. A line's overflow counts the hashes that went past it, so a search ends at the first line that
// none went past, and erasing needs no tombstones. At most four of five entries are used. Deliberately does not know
// the rows. Thread safety: confined to the thread that holds the range's lock; const methods may run on several threads
// while no other method runs.
class RowIndex {
 public:
  // Place of a hash that is not in the index.
  static constexpr uint32_t kNoPlace = std::numeric_limits<uint32_t>::max();

  struct Entry {
    uint64_t hash;
    uint32_t place;
  };

  struct alignas(PageArena::kLineBytes) Line {
    static constexpr int kEntries = 5;

    uint64_t hashes[kEntries];
    // kNoPlace: the entry is free, and its hash means nothing.
    uint32_t places[kEntries];
    // Number of hashes in the index that found this line full on the way from their home lines.
    uint32_t overflow;
  };
  static_assert(sizeof(Line) == PageArena::kLineBytes);

  // Entries per line that are used at most, on average: the load factor is 0.8.
  static constexpr uint64_t kMaxMeanEntries = 4;

  // For hashes that agree in their top `range_bits` bits. `stagger`: in [0, 1); indexes with different ones grow at
  // different numbers of hashes.
  RowIndex(PageArena* arena, int range_bits, float stagger = 0)
      : range_bits_(range_bits), stagger_(stagger), lines_(arena, sizeof(Line)) {}

  // Writes the home line of each hash and prefetches it. The lines stay valid until Insert is called.
  void Prefetch(absl::Span<const uint64_t> hashes, const Line** homes) const;

  // Writes the place of each hash, or kNoPlace. `homes`: from Prefetch.
  void Find(absl::Span<const uint64_t> hashes, const Line* const* homes, uint32_t* places) const;

  // Place of one hash, or kNoPlace.
  uint32_t Find(uint64_t hash) const;

  // Number of the hashes that are not in the index. Neighbors should be close to each other.
  uint64_t CountMissing(absl::Span<const uint64_t> hashes) const;

  // Makes room for that many hashes in total, or a quarter more than now if that is more. Ascending hashes, inserted
  // one by one without it, would crowd into the first lines. False, and nothing changed, if there is no memory.
  bool Reserve(uint64_t hashes);

  // Adds a hash that is not in the index; may grow the index by a quarter. False, and nothing changed, if there is no
  // memory.
  bool Insert(uint64_t hash, uint32_t place);

  // Removes a hash and returns its place, or kNoPlace if it was not in the index.
  uint32_t Erase(uint64_t hash);

  // All entries, in any order.
  std::vector<Entry> Entries() const;
  // All entries, ascending by hash.
  std::vector<Entry> Sorted() const;

  uint64_t size() const { return size_; }
  // Number of hashes for which there is room.
  uint64_t capacity() const { return kMaxMeanEntries * line_count_; }
  uint64_t lines() const { return line_count_; }
  uint64_t memory_bytes() const { return lines_.memory_bytes(); }

 private:
  Line& At(uint64_t line) const { return *reinterpret_cast<Line*>(lines_.At(line)); }
  uint64_t Home(uint64_t hash) const;
  uint64_t After(uint64_t line) const { return line + 1 == line_count_ ? 0 : line + 1; }
  // Like Find, for a hash that is not in its home line, which has an overflow.
  uint32_t FindPastHome(uint64_t hash) const;
  // Place by a line's matching entries, one bit each.
  uint32_t Resolve(const Line& home, uint32_t matches, uint64_t hash) const;
  void FindPortable(absl::Span<const uint64_t> hashes, const Line* const* homes, uint32_t* places) const;
  void FindAvx2(absl::Span<const uint64_t> hashes, const Line* const* homes, uint32_t* places) const;
  void FindAvx512(absl::Span<const uint64_t> hashes, const Line* const* homes, uint32_t* places) const;

  void Place(const Entry& entry);

  const int range_bits_;
  const float stagger_;
  SegmentedArray lines_;
  uint64_t line_count_ = 0;
  uint64_t size_ = 0;
};

}  // namespace ballast
