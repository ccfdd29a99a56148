// SPDX-License-Identifier: Apache-2.0
#include "client/rows/row_order.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/tables/row_hash.h"

namespace ballast {
namespace {

using Place = RowOrder::Place;

// Two passes sort by the hash's first 22 bits, which leaves few neighbors in disorder, because hashes are uniform.
constexpr int kRadixBits = 11;
constexpr int kSortedBits = 2 * kRadixBits;
// Shorter lists are faster to sort by comparison.
constexpr size_t kMinRadixPlaces = 512;

bool Before(const Place& a, const Place& b) { return a.hash != b.hash ? a.hash < b.hash : a.position < b.position; }

// Sorts by kRadixBits bits of the hash from bit `shift`; equal ones keep their order.
void SortByDigit(const std::vector<Place>& from, int shift, std::vector<Place>& to) {
  constexpr uint64_t kMask = (uint64_t{1} << kRadixBits) - 1;
  std::array<uint32_t, kMask + 1> next = {};
  for (const Place& place : from) ++next[(place.hash >> shift) & kMask];
  uint32_t start = 0;
  for (uint32_t& count : next) start += std::exchange(count, start);
  for (const Place& place : from) to[next[(place.hash >> shift) & kMask]++] = place;
}

void Sort(std::vector<Place>& places) {
  if (places.size() < kMinRadixPlaces) return std::sort(places.begin(), places.end(), Before);
  std::vector<Place> half(places.size());
  SortByDigit(places, 64 - kSortedBits, half);
  SortByDigit(half, 64 - kRadixBits, places);
  for (auto begin = places.begin(); begin != places.end();) {
    auto end = begin + 1;
    while (end != places.end() && (end->hash ^ begin->hash) >> (64 - kSortedBits) == 0) ++end;
    if (end - begin > 1 && !std::is_sorted(begin, end, Before)) std::sort(begin, end, Before);
    begin = end;
  }
}

}  // namespace

RowOrder::RowOrder(uint32_t table_id, absl::Span<const uint64_t> ids) : places_(ids.size()) {
  for (size_t i = 0; i < ids.size(); ++i) places_[i] = {RowHash(ids[i], table_id), static_cast<uint32_t>(i)};
  Sort(places_);
  starts_.reserve(places_.size() + 1);
  for (size_t i = 0; i < places_.size(); ++i) {
    if (i == 0 || places_[i].hash != places_[i - 1].hash) starts_.push_back(i);
  }
  starts_.push_back(places_.size());
}

size_t RowOrder::CountBelow(uint64_t hash) const {
  const auto first = std::partition_point(starts_.begin(), starts_.end() - 1,
                                          [&](uint32_t start) { return places_[start].hash < hash; });
  return first - starts_.begin();
}

}  // namespace ballast
