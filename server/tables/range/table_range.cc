// SPDX-License-Identifier: Apache-2.0
#include "server/tables/range/table_range.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "common/simd/memory_access.h"

namespace ballast {
namespace {

// The processor's own prefetcher follows a longer row by itself.
constexpr size_t kMaxPrefetchedBytes = 512;

void PrefetchBytes(const void* address, size_t bytes, bool to_write = false) {
  const char* begin = static_cast<const char*>(address);
  bytes = std::min(bytes, kMaxPrefetchedBytes);
  if (to_write) {
    for (size_t offset = 0; offset < bytes; offset += PageArena::kLineBytes) PrefetchToWrite(begin + offset);
    return PrefetchToWrite(begin + bytes - 1);
  }
  for (size_t offset = 0; offset < bytes; offset += PageArena::kLineBytes) __builtin_prefetch(begin + offset);
  __builtin_prefetch(begin + bytes - 1);
}

// The update of one row by one gradient of the push; counts its staleness.
RowUpdate UpdateOf(const BatchPush& push, size_t i, const RowLayout& layout, float* row, BatchOutcome& outcome) {
  const uint32_t version = layout.State(row).version;
  RowUpdate update{row, push.gradients + i * layout.dim(), version + 1, push.learning_rate};
  if (push.pulled_versions.empty()) return update;
  if (push.pulled_versions[i] > version) {
    ++outcome.orphaned;
    return update;
  }
  const uint32_t staleness = version - push.pulled_versions[i];
  outcome.max_staleness = std::max(outcome.max_staleness, staleness);
  if (push.scale_by_staleness) update.learning_rate /= 1.0f + static_cast<float>(staleness);
  return update;
}

// Score of a row with a small norm, below that of any other.
constexpr double kSmallNorm = -std::numeric_limits<double>::infinity();

double Norm(absl::Span<const float> weights) {
  double sum = 0;
  for (float weight : weights) sum += double{weight} * weight;
  return std::sqrt(sum);
}

// In [0, 1): the same for equal arguments, and else as if drawn at random.
double Draw(uint64_t seed, uint64_t hash) {
  uint64_t x = seed ^ hash;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

// A row to copy.
struct RowSource {
  uint64_t hash;
  const void* image;
};

RowImages CopyRows(absl::Span<const RowSource> sources, const RowLayout& layout) {
  const size_t words = layout.image_words();
  RowImages rows;
  rows.hashes.reserve(sources.size());
  rows.words.resize(sources.size() * words);
  for (size_t i = 0; i < sources.size(); ++i) {
    rows.hashes.push_back(sources[i].hash);
    std::memcpy(rows.words.data() + i * words, sources[i].image, words * sizeof(uint32_t));
  }
  return rows;
}

void SortAndDeduplicate(std::vector<uint64_t>& hashes) {
  std::sort(hashes.begin(), hashes.end());
  hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
}

}  // namespace

void BatchOutcome::Add(const BatchOutcome& other) {
  applied += other.applied;
  created += other.created;
  orphaned += other.orphaned;
  refused += other.refused;
  not_admitted += other.not_admitted;
  expired += other.expired;
  over_budget += other.over_budget;
  small_norm += other.small_norm;
  returned += other.returned;
  side_bytes += other.side_bytes;
  max_staleness = std::max(max_staleness, other.max_staleness);
}

uint64_t TableRange::CountMissing(absl::Span<const uint64_t> hashes) const {
  absl::ReaderMutexLock lock(&mutex_);
  return index_.CountMissing(hashes);
}

TableRange::TableRange(PageArena* arena, const RowLayout& layout, int range_bits, float stagger, const RowRules& rules)
    : layout_(layout),
      rules_(rules),
      range_bits_(range_bits),
      index_(arena, range_bits, stagger),
      rows_(arena, layout),
      uses_(UseCounts::Make(rules, range_bits)) {}

void TableRange::AwaitTurn(uint64_t place) const {
  const auto turn = [&] {
    mutex_.AssertReaderHeld();
    return changes_ == place;
  };
  absl::ReaderMutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&turn));
}

void TableRange::EnterPush(absl::Span<const uint64_t> hashes, const RowTime& time, BatchOutcome& outcome) {
  mutex_.Lock();
  ReserveMissingLocked(hashes, time, outcome);
}

void TableRange::LeavePush(bool ordered, const RowTime& time, BatchOutcome& outcome) {
  if (rules_.max_rows > 0 && index_.size() > rules_.max_rows) EvictLocked(time, outcome);
  if (const uint64_t bytes = SideBytesLocked(); bytes != side_bytes_) {
    outcome.side_bytes += static_cast<int64_t>(bytes - side_bytes_);
    side_bytes_ = bytes;
  }
  if (ordered) ++changes_;
  mutex_.Unlock();
}

void TableRange::Reserve(uint64_t rows) {
  absl::MutexLock lock(&mutex_);
  index_.Reserve(rows);
}

bool TableRange::Erase(uint64_t hash) {
  absl::MutexLock lock(&mutex_);
  const uint32_t place = index_.Erase(hash);
  if (place == RowIndex::kNoPlace) return false;
  RemoveLocked(hash, place);
  return true;
}

void TableRange::ForEachRow(absl::FunctionRef<void(const RowView&)> visitor) const {
  absl::ReaderMutexLock lock(&mutex_);
  const size_t dim = layout_.dim();
  for (const RowIndex::Entry& entry : index_.Sorted()) {
    const float* row = rows_.At(entry.place);
    visitor({entry.hash, {row, dim}, {row + dim, static_cast<size_t>(layout_.slot_floats())}, layout_.State(row)});
  }
}

void TableRange::BeginCapture(RangeCapture* capture, RangeChanges* since) {
  absl::MutexLock lock(&mutex_);
  if (since != nullptr) capture->Confine(since->Take());
  captures_.push_back(capture);
}

void TableRange::DropCapture(RangeCapture* capture) {
  absl::MutexLock lock(&mutex_);
  captures_.erase(std::find(captures_.begin(), captures_.end(), capture));
}

void TableRange::Follow(RangeChanges* changes) {
  absl::MutexLock lock(&mutex_);
  followers_.push_back(changes);
}

void TableRange::Unfollow(RangeChanges* changes) {
  absl::MutexLock lock(&mutex_);
  followers_.erase(std::find(followers_.begin(), followers_.end(), changes));
}

RowImages TableRange::TakeChanges(RangeChanges* changes) {
  absl::MutexLock lock(&mutex_);
  RangeChanges::Hashes hashes = changes->Take();
  SortAndDeduplicate(hashes.changed);
  std::vector<RowSource> sources;
  for (uint64_t hash : hashes.changed) {
    const uint32_t place = index_.Find(hash);
    if (place != RowIndex::kNoPlace) sources.push_back({hash, rows_.At(place)});
  }
  SortAndDeduplicate(hashes.removed);
  RowImages rows = CopyRows(sources, layout_);
  rows.removed = std::move(hashes.removed);
  return rows;
}

size_t TableRange::CountChanges(const RangeChanges& changes) const {
  absl::ReaderMutexLock lock(&mutex_);
  return changes.size();
}

RowWeights TableRange::TakeWeights(RangeChanges* changes, RowWeights* all) {
  RowWeights taken;
  absl::MutexLock lock(&mutex_);
  if (changes != nullptr && !changes->empty()) {
    RangeChanges::Hashes hashes = changes->Take();
    SortAndDeduplicate(hashes.changed);
    SortAndDeduplicate(hashes.removed);
    for (uint64_t hash : hashes.changed) {
      const uint32_t place = index_.Find(hash);
      if (place != RowIndex::kNoPlace) CopyWeightsLocked(hash, place, taken);
    }
    // A row that began again exists.
    std::set_difference(hashes.removed.begin(), hashes.removed.end(), taken.hashes.begin(), taken.hashes.end(),
                        std::back_inserter(taken.removed));
  }
  if (all == nullptr) return taken;
  *all = {};
  all->hashes.reserve(index_.size());
  all->weights.reserve(index_.size() * layout_.dim());
  for (const RowIndex::Entry& entry : index_.Sorted()) CopyWeightsLocked(entry.hash, entry.place, *all);
  return taken;
}

void TableRange::CopyWeightsLocked(uint64_t hash, uint32_t place, RowWeights& to) const {
  const float* const row = rows_.At(place);
  to.hashes.push_back(hash);
  to.weights.insert(to.weights.end(), row, row + layout_.dim());
}

RowImages TableRange::EndCapture(RangeCapture* capture) {
  const size_t words = layout_.image_words();
  absl::MutexLock lock(&mutex_);
  captures_.erase(std::find(captures_.begin(), captures_.end(), capture));
  std::vector<RowSource> sources;
  const auto add_unless_marked = [&](uint64_t hash, uint32_t place) {
    mutex_.AssertHeld();
    if (!capture->IsMarked(place)) sources.push_back({hash, rows_.At(place)});
  };
  std::optional<RangeChanges::Hashes>& only = capture->only();
  if (only.has_value()) {
    SortAndDeduplicate(only->changed);
    for (uint64_t hash : only->changed) {
      const uint32_t place = index_.Find(hash);
      if (place != RowIndex::kNoPlace) add_unless_marked(hash, place);
    }
  } else {
    sources.reserve(index_.size() + capture->kept().hashes.size());
    for (const RowIndex::Entry& entry : index_.Entries()) add_unless_marked(entry.hash, entry.place);
  }
  const RowImages& kept = capture->kept();
  for (size_t i = 0; i < kept.hashes.size(); ++i) {
    const bool wanted =
        !only.has_value() || std::binary_search(only->changed.begin(), only->changed.end(), kept.hashes[i]);
    if (wanted) sources.push_back({kept.hashes[i], &kept.words[i * words]});
  }
  std::sort(sources.begin(), sources.end(), [](const RowSource& a, const RowSource& b) { return a.hash < b.hash; });
  RowImages rows = CopyRows(sources, layout_);
  if (only.has_value()) {
    SortAndDeduplicate(only->removed);
    rows.removed = std::move(only->removed);
  }
  if (uses_ != nullptr) rows.uses = capture->uses().has_value() ? std::move(capture->uses()) : uses_->Save();
  return rows;
}

size_t TableRange::Restore(absl::Span<const uint64_t> hashes, const char* images, bool replace) {
  const size_t bytes = layout_.image_words() * sizeof(uint32_t);
  absl::MutexLock lock(&mutex_);
  if (replace) {
    BatchOutcome unused;
    ReserveMissingLocked(hashes, {}, unused);
  } else {
    index_.Reserve(index_.size() + hashes.size());
  }
  size_t restored = 0;
  for (size_t i = 0; i < hashes.size(); ++i) {
    const uint32_t place = index_.Find(hashes[i]);
    float* row = nullptr;
    if (place == RowIndex::kNoPlace) {
      row = CreateLocked(hashes[i]);
    } else if (replace) {
      ChangeLocked(hashes[i], place);
      row = rows_.At(place);
    }
    if (row == nullptr) continue;
    std::memcpy(row, images + i * bytes, bytes);
    ++restored;
  }
  return restored;
}

absl::Status TableRange::RestoreUses(absl::string_view uses) {
  absl::MutexLock lock(&mutex_);
  if (uses_ != nullptr) return uses_->Restore(uses);
  return uses.empty() ? absl::OkStatus() : absl::DataLossError("has counts of uses, which the table does not have");
}

uint64_t TableRange::Sweep(const RowTime& time) {
  absl::MutexLock lock(&mutex_);
  return SweepLocked(time);
}

uint64_t TableRange::free_places() const {
  absl::ReaderMutexLock lock(&mutex_);
  return rows_.free_places();
}

uint64_t TableRange::rows() const {
  absl::ReaderMutexLock lock(&mutex_);
  return index_.size();
}

uint64_t TableRange::memory_bytes() const {
  absl::ReaderMutexLock lock(&mutex_);
  return sizeof(*this) + index_.memory_bytes() + rows_.memory_bytes() + SideBytesLocked();
}

uint64_t TableRange::waiting() const {
  absl::ReaderMutexLock lock(&mutex_);
  return uses_ == nullptr ? 0 : uses_->waiting();
}

void TableRange::CountWaiting(std::vector<uint64_t>& by_uses) const {
  absl::ReaderMutexLock lock(&mutex_);
  if (uses_ != nullptr) uses_->CountByUses(by_uses);
}

void TableRange::Prefetch() const { PrefetchBytes(this, sizeof(*this)); }

void TableRange::Find(absl::Span<const uint64_t> hashes, RowGroup& group, bool to_change) const {
  index_.Find(hashes, group.homes, group.places);
  for (size_t i = 0; i < hashes.size(); ++i) {
    group.rows[i] = group.places[i] == RowIndex::kNoPlace ? nullptr : rows_.At(group.places[i]);
    if (group.rows[i] != nullptr) PrefetchBytes(group.rows[i], layout_.bytes(), to_change);
  }
}

void TableRange::Pull(const BatchPull& pull, const RowGroup& group) const {
  const size_t dim = layout_.dim();
  for (size_t i = 0; i < group.count; ++i) {
    const size_t at = group.begin + i;
    const float* row = group.rows[i];
    if (row != nullptr && pull.time.HasExpired(layout_.State(row).last_step)) row = nullptr;
    float* values = pull.values + at * dim;
    if (row != nullptr) {
      CopyFloats(row, dim, values);
    } else if (pull.missing != nullptr) {
      pull.missing->Fill(pull.hashes[at], {values, dim});
    } else {
      std::fill_n(values, dim, 0.0f);
    }
    if (pull.versions != nullptr) pull.versions[at] = row == nullptr ? 0 : layout_.State(row).version;
  }
}

void TableRange::Push(const BatchPush& push, RowGroup& group, BatchOutcome& outcome) {
  RowUpdate updates[RowGroup::kMost];
  size_t updated = 0;
  for (size_t i = 0; i < group.count; ++i) {
    const size_t at = group.begin + i;
    float* row = group.rows[i];
    const bool expired = row != nullptr && push.time.HasExpired(layout_.State(row).last_step);
    if (row != nullptr && !expired) {
      ChangeLocked(push.hashes[at], group.places[i]);
    } else {
      row = BeginLocked(push, at, row, group.places[i], outcome);
      if (row == nullptr) continue;
    }
    if (rules_.half_life > 0) {
      RowState& state = layout_.State(row);
      const uint32_t uses = push.uses.empty() ? 1 : push.uses[at];
      state.score = ScoreAfter(state.score, push.time.Since(state.last_step), rules_.half_life, uses);
    }
    updates[updated++] = UpdateOf(push, at, layout_, row, outcome);
  }
  push.optimizer->Apply(layout_.dim(), push.gradient_scale, absl::MakeConstSpan(updates, updated));
  for (size_t i = 0; i < updated; ++i) {
    RowState& state = layout_.State(updates[i].row);
    state.last_step = push.time.now;
    state.version = updates[i].update;
  }
  outcome.applied += updated;
}

bool TableRange::AdmitLocked(const BatchPush& push, size_t at) {
  const uint64_t hash = push.hashes[at];
  if (uses_ != nullptr) {
    for (RangeCapture* capture : captures_)
      capture->KeepUses([this] {
        mutex_.AssertReaderHeld();
        return uses_->Save();
      });
    const uint32_t uses = push.uses.empty() ? 1 : push.uses[at];
    if (uses_->Count(hash, uses, push.time) < rules_.min_uses) return false;
  }
  if (rules_.probability < 1 && Draw(push.draw, hash) >= rules_.probability) return false;
  if (uses_ != nullptr) uses_->Forget(hash);
  return true;
}

float* TableRange::BeginLocked(const BatchPush& push, size_t at, float* expired, uint32_t place,
                               BatchOutcome& outcome) {
  const uint64_t hash = push.hashes[at];
  if (!AdmitLocked(push, at)) {
    ++outcome.not_admitted;
    return nullptr;
  }
  float* row = expired;
  if (row != nullptr) {
    ChangeLocked(hash, place);
    ++outcome.expired;
    ++outcome.returned;
  } else {
    row = CreateLocked(hash);
    if (row == nullptr) {
      ++outcome.refused;
      return nullptr;
    }
    outcome.returned += evicted_.Take(hash, range_bits_);
  }
  ++outcome.created;
  push.initializer->Fill(hash, {row, static_cast<size_t>(layout_.dim())});
  std::fill_n(row + layout_.dim(), layout_.slot_floats(), 0.0f);
  layout_.State(row) = RowState();
  return row;
}

void TableRange::ReserveMissingLocked(absl::Span<const uint64_t> hashes, const RowTime& time, BatchOutcome& outcome) {
  if (index_.size() + hashes.size() <= index_.capacity()) return;
  const auto rows_after = [&] {
    mutex_.AssertHeld();
    return index_.size() + index_.CountMissing(hashes);
  };
  uint64_t rows = rows_after();
  if (rows <= index_.capacity()) return;
  if (const uint64_t swept = SweepLocked(time); swept > 0) {
    outcome.expired += swept;
    rows = rows_after();
    // With less free space, the next push would have to sweep again.
    if (rows <= index_.capacity() / 10 * 9) return;
  }
  index_.Reserve(rows);
}

uint64_t TableRange::SweepLocked(const RowTime& time) {
  if (time.max_age >= RowTime::kNever) return 0;
  uint64_t swept = 0;
  for (const RowIndex::Entry& entry : index_.Entries()) {
    if (!time.HasExpired(layout_.State(rows_.At(entry.place)).last_step)) continue;
    RemoveByRuleLocked(entry);
    ++swept;
  }
  return swept;
}

void TableRange::EvictLocked(const RowTime& time, BatchOutcome& outcome) {
  // The outcome must not depend on which expired rows were swept before.
  outcome.expired += SweepLocked(time);
  if (index_.size() <= rules_.max_rows) return;
  struct Candidate {
    double score;
    RowIndex::Entry entry;
  };
  std::vector<Candidate> candidates;
  candidates.reserve(index_.size());
  for (const RowIndex::Entry& entry : index_.Entries()) {
    const float* const row = rows_.At(entry.place);
    const RowState& state = layout_.State(row);
    const int32_t age = time.Since(state.last_step);
    double score = rules_.half_life > 0 ? ScoreAt(state.score, age, rules_.half_life) : -static_cast<double>(age);
    if (rules_.min_norm > 0 && Norm({row, static_cast<size_t>(layout_.dim())}) < rules_.min_norm) score = kSmallNorm;
    candidates.push_back({score, entry});
  }
  const size_t victims = index_.size() - std::max<uint64_t>(rules_.max_rows * 9 / 10, 1);
  std::nth_element(candidates.begin(), candidates.begin() + victims, candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.score != b.score ? a.score < b.score : a.entry.hash < b.entry.hash;
                   });
  for (size_t i = 0; i < victims; ++i) {
    ++(candidates[i].score == kSmallNorm ? outcome.small_norm : outcome.over_budget);
    RemoveByRuleLocked(candidates[i].entry);
  }
}

void TableRange::RemoveByRuleLocked(const RowIndex::Entry& entry) {
  index_.Erase(entry.hash);
  evicted_.Add(entry.hash, range_bits_, index_.size() + 1);
  RemoveLocked(entry.hash, entry.place);
}

uint64_t TableRange::SideBytesLocked() const {
  return evicted_.memory_bytes() + (uses_ == nullptr ? 0 : uses_->memory_bytes());
}

float* TableRange::CreateLocked(uint64_t hash) {
  if (index_.size() == index_.capacity()) return nullptr;
  const std::optional<uint32_t> place = rows_.Allocate();
  if (!place.has_value()) return nullptr;
  if (!index_.Insert(hash, *place)) {
    rows_.Free(*place);
    return nullptr;
  }
  for (RangeCapture* capture : captures_) capture->Mark(*place);
  for (RangeChanges* changes : followers_) changes->Change(hash, *place);
  return rows_.At(*place);
}

void TableRange::KeepLocked(uint64_t hash, uint32_t place) {
  for (RangeCapture* capture : captures_) {
    if (capture->Mark(place)) capture->Keep(hash, rows_.At(place), layout_);
  }
}

void TableRange::ChangeLocked(uint64_t hash, uint32_t place) {
  KeepLocked(hash, place);
  for (RangeChanges* changes : followers_) changes->Change(hash, place);
}

void TableRange::RemoveLocked(uint64_t hash, uint32_t place) {
  KeepLocked(hash, place);
  for (RangeChanges* changes : followers_) changes->Remove(hash, place);
  rows_.Free(place);
}

}  // namespace ballast
