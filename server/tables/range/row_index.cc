// SPDX-License-Identifier: Apache-2.0
#include "server/tables/range/row_index.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "common/simd/instruction_set.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ballast {
namespace {

// Smaller indexes grow fast enough together.
constexpr uint64_t kStaggeredLines = 16;

constexpr uint32_t kAllEntries = (1u << RowIndex::Line::kEntries) - 1;

// Entries of the line that hold the hash, one bit each: none or one.
uint32_t Matches(const RowIndex::Line& line, uint64_t hash) {
  uint32_t matches = 0;
  for (int i = 0; i < RowIndex::Line::kEntries; ++i) {
    matches |= static_cast<uint32_t>((line.hashes[i] == hash) & (line.places[i] != RowIndex::kNoPlace)) << i;
  }
  return matches;
}

// First free entry of the line, or a larger number than the last one's if it is full. Without branches, because how
// full a line is cannot be predicted.
int FreeEntry(const RowIndex::Line& line) {
  uint32_t free = 1u << RowIndex::Line::kEntries;
  for (int i = 0; i < RowIndex::Line::kEntries; ++i) {
    free |= static_cast<uint32_t>(line.places[i] == RowIndex::kNoPlace) << i;
  }
  return std::countr_zero(free);
}

// Copies the line's entries to `to`, and returns their number. A free entry is written, too, and then overwritten by
// the next one, or past the last one; so there is no branch that cannot be predicted.
size_t CopyEntries(const RowIndex::Line& line, RowIndex::Entry* to) {
  size_t count = 0;
  for (int i = 0; i < RowIndex::Line::kEntries; ++i) {
    to[count] = {line.hashes[i], line.places[i]};
    count += line.places[i] != RowIndex::kNoPlace;
  }
  return count;
}

void Clear(RowIndex::Line& line) {
  std::fill_n(line.places, RowIndex::Line::kEntries, RowIndex::kNoPlace);
  line.overflow = 0;
}

size_t TakeEntries(RowIndex::Line& line, RowIndex::Entry* to) {
  const size_t count = CopyEntries(line, to);
  Clear(line);
  return count;
}

}  // namespace

void RowIndex::Prefetch(absl::Span<const uint64_t> hashes, const Line** homes) const {
  for (size_t i = 0; i < hashes.size(); ++i) {
    homes[i] = line_count_ == 0 ? nullptr : &At(Home(hashes[i]));
    __builtin_prefetch(homes[i]);
  }
}

void RowIndex::Find(absl::Span<const uint64_t> hashes, const Line* const* homes, uint32_t* places) const {
  if (line_count_ == 0) {
    std::fill_n(places, hashes.size(), kNoPlace);
    return;
  }
#if defined(__x86_64__)
  const InstructionSet set = ChosenInstructionSet();
  if (set == InstructionSet::kAvx512) return FindAvx512(hashes, homes, places);
  if (set == InstructionSet::kAvx2) return FindAvx2(hashes, homes, places);
#endif
  FindPortable(hashes, homes, places);
}

uint32_t RowIndex::Find(uint64_t hash) const {
  if (line_count_ == 0) return kNoPlace;
  const Line& home = At(Home(hash));
  return Resolve(home, Matches(home, hash), hash);
}

uint64_t RowIndex::CountMissing(absl::Span<const uint64_t> hashes) const {
  constexpr size_t kTogether = 16;
  uint64_t missing = 0;
  while (!hashes.empty()) {
    const absl::Span<const uint64_t> some = hashes.subspan(0, kTogether);
    const Line* homes[kTogether];
    uint32_t places[kTogether];
    Prefetch(some, homes);
    Find(some, homes, places);
    missing += std::count(places, places + some.size(), kNoPlace);
    hashes.remove_prefix(some.size());
  }
  return missing;
}

bool RowIndex::Reserve(uint64_t hashes) {
  if (hashes <= capacity()) return true;
  uint64_t lines = std::max(line_count_ + line_count_ / 4, (hashes + kMaxMeanEntries - 1) / kMaxMeanEntries);
  // Once, because the distance stays the same share of the lines from then on.
  const bool staggers = line_count_ < kStaggeredLines && lines >= kStaggeredLines;
  if (staggers) lines += static_cast<uint64_t>(stagger_ * static_cast<float>(lines / 4));
  if (!lines_.Reserve(lines)) return false;
  const auto entries = std::make_unique_for_overwrite<Entry[]>(size_ + 1);
  size_t count = 0;
  for (uint64_t number = 0; number < line_count_; ++number) count += TakeEntries(At(number), &entries[count]);
  for (uint64_t number = line_count_; number < lines; ++number) Clear(At(number));
  line_count_ = lines;
  // Entries used in each line, which is sooner known from here than from the line that was just written.
  std::vector<uint8_t> used(lines, 0);
  // Neighbors mostly have the same line.
  uint64_t last = lines;
  Line* line = nullptr;
  for (size_t i = 0; i < count; ++i) {
    uint64_t number = Home(entries[i].hash);
    for (; used[number] == Line::kEntries; number = After(number)) ++At(number).overflow;
    if (number != last) line = &At(number);
    last = number;
    line->hashes[used[number]] = entries[i].hash;
    line->places[used[number]++] = entries[i].place;
  }
  return true;
}

bool RowIndex::Insert(uint64_t hash, uint32_t place) {
  if (!Reserve(size_ + 1)) return false;
  Place({hash, place});
  ++size_;
  return true;
}

uint32_t RowIndex::Erase(uint64_t hash) {
  if (line_count_ == 0) return kNoPlace;
  const uint64_t home = Home(hash);
  uint64_t line = home;
  uint32_t matches = Matches(At(line), hash);
  for (uint64_t seen = 1; matches == 0; ++seen) {
    if (At(line).overflow == 0 || seen == line_count_) return kNoPlace;
    line = After(line);
    matches = Matches(At(line), hash);
  }
  for (uint64_t passed = home; passed != line; passed = After(passed)) --At(passed).overflow;
  --size_;
  uint32_t& place = At(line).places[std::countr_zero(matches)];
  return std::exchange(place, kNoPlace);
}

std::vector<RowIndex::Entry> RowIndex::Sorted() const {
  std::vector<Entry> entries = Entries();
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.hash < b.hash; });
  return entries;
}

uint64_t RowIndex::Home(uint64_t hash) const {
  return absl::Uint128High64(absl::uint128(hash << range_bits_) * line_count_);
}

uint32_t RowIndex::FindPastHome(uint64_t hash) const {
  uint64_t line = Home(hash);
  // Every line may have an overflow.
  for (uint64_t seen = 1; seen < line_count_ && At(line).overflow > 0; ++seen) {
    line = After(line);
    const uint32_t matches = Matches(At(line), hash);
    if (matches != 0) return At(line).places[std::countr_zero(matches)];
  }
  return kNoPlace;
}

inline uint32_t RowIndex::Resolve(const Line& home, uint32_t matches, uint64_t hash) const {
  if (matches != 0) return home.places[std::countr_zero(matches)];
  return home.overflow == 0 ? kNoPlace : FindPastHome(hash);
}

void RowIndex::FindPortable(absl::Span<const uint64_t> hashes, const Line* const* homes, uint32_t* places) const {
  for (size_t i = 0; i < hashes.size(); ++i) places[i] = Resolve(*homes[i], Matches(*homes[i], hashes[i]), hashes[i]);
}

#if defined(__x86_64__)
// The last half of the line, from its fourth 64-bit word on, has the last hash, the places and the overflow.
[[BALLAST_AVX2]] void RowIndex::FindAvx2(absl::Span<const uint64_t> hashes, const Line* const* homes,
                                         uint32_t* places) const {
  for (size_t i = 0; i < hashes.size(); ++i) {
    const auto* words = reinterpret_cast<const __m256i*>(homes[i]);
    const __m256i wanted = _mm256_set1_epi64x(static_cast<int64_t>(hashes[i]));
    const __m256i first = _mm256_cmpeq_epi64(_mm256_load_si256(words), wanted);
    const __m256i last = _mm256_load_si256(words + 1);
    const int equal_first = _mm256_movemask_pd(_mm256_castsi256_pd(first));
    const int equal_last = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(last, wanted)));
    const int free = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(last, _mm256_set1_epi32(-1)))) >> 2;
    const uint32_t matches = static_cast<uint32_t>((equal_first | equal_last << 4) & ~free) & kAllEntries;
    places[i] = Resolve(*homes[i], matches, hashes[i]);
  }
}

[[BALLAST_AVX512]] void RowIndex::FindAvx512(absl::Span<const uint64_t> hashes, const Line* const* homes,
                                             uint32_t* places) const {
  for (size_t i = 0; i < hashes.size(); ++i) {
    const __m512i line = _mm512_load_si512(homes[i]);
    const uint32_t equal = _mm512_cmpeq_epi64_mask(line, _mm512_set1_epi64(static_cast<int64_t>(hashes[i])));
    const uint32_t used = static_cast<uint32_t>(_mm512_cmpneq_epi32_mask(line, _mm512_set1_epi32(-1))) >> 10;
    places[i] = Resolve(*homes[i], equal & used & kAllEntries, hashes[i]);
  }
}
#endif

std::vector<RowIndex::Entry> RowIndex::Entries() const {
  std::vector<Entry> entries(size_ + 1);
  size_t count = 0;
  for (uint64_t number = 0; number < line_count_; ++number) count += CopyEntries(At(number), &entries[count]);
  entries.resize(size_);
  return entries;
}

void RowIndex::Place(const Entry& entry) {
  uint64_t line = Home(entry.hash);
  int free = FreeEntry(At(line));
  for (; free == Line::kEntries; free = FreeEntry(At(line))) {
    ++At(line).overflow;
    line = After(line);
  }
  At(line).hashes[free] = entry.hash;
  At(line).places[free] = entry.place;
}

}  // namespace ballast
