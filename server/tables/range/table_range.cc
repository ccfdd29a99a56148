// SPDX-License-Identifier: Apache-2.0
#include "server/tables/range/table_range.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace ballast {
namespace {

// The processor's own prefetcher follows a longer row by itself.
constexpr size_t kMaxPrefetchedBytes = 512;

void PrefetchBytes(const void* address, size_t bytes) {
  const char* begin = static_cast<const char*>(address);
  bytes = std::min(bytes, kMaxPrefetchedBytes);
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
  max_staleness = std::max(max_staleness, other.max_staleness);
}

uint64_t TableRange::CountMissing(absl::Span<const uint64_t> hashes) const {
  uint64_t missing = 0;
  absl::ReaderMutexLock lock(&mutex_);
  for (size_t begin = 0; begin < hashes.size(); begin += RowGroup::kMost) {
    const absl::Span<const uint64_t> some = hashes.subspan(begin, RowGroup::kMost);
    RowGroup group;
    Prefetch(some, group);
    Find(some, group);
    missing += std::count(group.rows, group.rows + some.size(), nullptr);
  }
  return missing;
}

void TableRange::EnterPush(absl::Span<const uint64_t> hashes, std::optional<uint64_t> place) {
  mutex_.Lock();
  if (place.has_value()) {
    const auto turn = [&] {
      mutex_.AssertReaderHeld();
      return changes_ == *place;
    };
    mutex_.Await(absl::Condition(&turn));
  }
  ReserveMissingLocked(hashes);
}

void TableRange::LeavePush(bool ordered) {
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
  RowImages rows = CopyRows(sources, layout_);
  rows.removed = std::move(hashes.removed);
  return rows;
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
  if (only.has_value()) rows.removed = std::move(only->removed);
  return rows;
}

size_t TableRange::Restore(absl::Span<const uint64_t> hashes, const char* images) {
  const size_t bytes = layout_.image_words() * sizeof(uint32_t);
  absl::MutexLock lock(&mutex_);
  index_.Reserve(index_.size() + hashes.size());
  size_t restored = 0;
  for (size_t i = 0; i < hashes.size(); ++i) {
    float* const row = index_.Find(hashes[i]) == RowIndex::kNoPlace ? CreateLocked(hashes[i]) : nullptr;
    if (row == nullptr) continue;
    std::memcpy(row, images + i * bytes, bytes);
    ++restored;
  }
  return restored;
}

uint64_t TableRange::rows() const {
  absl::ReaderMutexLock lock(&mutex_);
  return index_.size();
}

uint64_t TableRange::memory_bytes() const {
  absl::ReaderMutexLock lock(&mutex_);
  return sizeof(*this) + index_.memory_bytes() + rows_.memory_bytes();
}

void TableRange::Prefetch() const { PrefetchBytes(this, sizeof(*this)); }

void TableRange::Find(absl::Span<const uint64_t> hashes, RowGroup& group) const {
  index_.Find(hashes, group.homes, group.places);
  for (size_t i = 0; i < hashes.size(); ++i) {
    group.rows[i] = group.places[i] == RowIndex::kNoPlace ? nullptr : rows_.At(group.places[i]);
    if (group.rows[i] != nullptr) PrefetchBytes(group.rows[i], layout_.bytes());
  }
}

void TableRange::Pull(const BatchPull& pull, const RowGroup& group) const {
  const size_t dim = layout_.dim();
  for (size_t i = 0; i < group.count; ++i) {
    const size_t at = group.begin + i;
    const float* row = group.rows[i];
    float* values = pull.values + at * dim;
    if (row != nullptr) {
      std::memcpy(values, row, dim * sizeof(float));
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
    const uint64_t hash = push.hashes[group.begin + i];
    float* row = group.rows[i];
    if (row != nullptr) {
      ChangeLocked(hash, group.places[i]);
    } else {
      row = CreateLocked(hash);
      ++(row == nullptr ? outcome.refused : outcome.created);
      if (row == nullptr) continue;
      push.initializer->Fill(hash, {row, static_cast<size_t>(layout_.dim())});
      std::fill_n(row + layout_.dim(), layout_.slot_floats(), 0.0f);
      layout_.State(row) = RowState();
    }
    updates[updated++] = UpdateOf(push, group.begin + i, layout_, row, outcome);
  }
  push.optimizer->Apply(layout_.dim(), push.gradient_scale, absl::MakeConstSpan(updates, updated));
  for (size_t i = 0; i < updated; ++i) {
    RowState& state = layout_.State(updates[i].row);
    state.last_step = push.step;
    state.version = updates[i].update;
  }
  outcome.applied += updated;
}

void TableRange::ReserveMissingLocked(absl::Span<const uint64_t> hashes) {
  if (index_.size() + hashes.size() <= index_.capacity()) return;
  const auto missing = std::count_if(hashes.begin(), hashes.end(), [this](uint64_t hash) {
    mutex_.AssertHeld();
    return index_.Find(hash) == RowIndex::kNoPlace;
  });
  index_.Reserve(index_.size() + missing);
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
