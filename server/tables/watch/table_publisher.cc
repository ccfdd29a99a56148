// SPDX-License-Identifier: Apache-2.0
#include "server/tables/watch/table_publisher.h"

#include <algorithm>
#include <utility>

namespace ballast {
namespace {

// Rounds in which each range is swept once; with five rounds a second, 13 seconds.
constexpr uint32_t kRoundsPerSweep = 64;

// A range's rows with the memory that they are counted in.
struct CountedDelta {
  std::shared_ptr<const PublishedDelta> delta;
  ByteBudget::Reservation reservation;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TablePublisher>> TablePublisher::Make(const WatchableTable& table, v1::Encoding encoding,
                                                                     uint64_t max_retained) {
  absl::StatusOr<RowDeltaEncoder> encoder = RowDeltaEncoder::Make(table.id, table.dim, encoding);
  if (!encoder.ok()) return encoder.status();
  return std::unique_ptr<TablePublisher>(new TablePublisher(table, *std::move(encoder), max_retained));
}

TablePublisher::TablePublisher(const WatchableTable& table, RowDeltaEncoder encoder, uint64_t max_retained)
    : table_id_(table.id),
      first_range_(table.first_range),
      encoder_(std::move(encoder)),
      sweep_(table.sweep),
      log_(table.first_range, static_cast<uint32_t>(table.ranges.size()), max_retained) {
  for (TableRange* range : table.ranges) {
    const uint32_t number = first_range_ + range_count();
    ranges_.push_back(std::make_unique<RangePublisher>(number, range, &encoder_, &log_));
  }
}

bool TablePublisher::Publish(const Round& round) {
  log_.Trim(round.max_retained_bytes, round.since);
  // A sweep reads every row, so it takes turns.
  for (uint32_t swept = 0; swept < range_count(); swept += kRoundsPerSweep) {
    Sweep(next_swept_);
    next_swept_ = (next_swept_ + 1) % range_count();
  }
  uint64_t bytes = 0;
  for (uint32_t visited = 0; visited < range_count(); ++visited) {
    if (bytes >= round.max_published_bytes) return false;
    bytes += range(next_).Publish(round.now, round.since);
    next_ = (next_ + 1) % range_count();
  }
  return true;
}

TableWatch::TableWatch(std::shared_ptr<TablePublisher> publisher, Start start, ByteBudget* copies, absl::Time now)
    : publisher_(std::move(publisher)),
      copies_(copies),
      once_(start.once),
      ranges_(publisher_->range_count()),
      missing_(ranges_.size()),
      next_delta_(publisher_->log().end()) {
  if (start.after.empty()) return;
  const uint64_t oldest = publisher_->log().begin();
  const absl::flat_hash_map<uint32_t, uint32_t> found = publisher_->log().FindChains(start.after);
  for (const auto& [number, after] : start.after) {
    const uint32_t i = number - publisher_->first_range();
    if (number < publisher_->first_range() || i >= ranges_.size()) continue;
    const auto chain = found.find(number);
    ranges_[i].chain = publisher_->range(i).Join(after, chain == found.end() ? 0 : chain->second);
    if (ranges_[i].chain == 0) continue;
    ranges_[i].position = after.position;
    ranges_[i].missing = false;
    --missing_;
    next_delta_ = oldest;
    if (once_) publisher_->range(i).Publish(now, absl::InfinitePast());
  }
  end_ = publisher_->log().end();
}

TableWatch::~TableWatch() {
  for (uint32_t i = 0; i < ranges_.size(); ++i) {
    if (ranges_[i].chain != 0) publisher_->range(i).Leave(ranges_[i].chain, left_);
  }
}

void TableWatch::Lose(uint32_t range, absl::Time now) {
  publisher_->range(range).Leave(ranges_[range].chain, now);
  ranges_[range] = Range();
  ++missing_;
  ++fallen_behind_;
}

std::vector<EncodedDelta> TableWatch::Next(size_t max_bytes, absl::Time now) {
  left_ = now;
  std::vector<EncodedDelta> next;
  // Neither waits for the other: deltas of ranges that were sent go on while other ranges are sent.
  ReadDeltas(missing_ > 0 ? max_bytes / 2 : max_bytes, now, next);
  CopyRanges(max_bytes, now, next);
  return next;
}

void TableWatch::ReadDeltas(size_t max_bytes, absl::Time now, std::vector<EncodedDelta>& to) {
  const DeltaLog::Deltas read = publisher_->log().Read(next_delta_, max_bytes);
  next_delta_ = read.next;
  if (read.lost) {
    const std::vector<uint64_t> reach = publisher_->log().reach();
    for (uint32_t i = 0; i < ranges_.size(); ++i) {
      if (ranges_[i].chain != 0 && ranges_[i].position < reach[i]) Lose(i, now);
    }
  }
  for (const std::shared_ptr<const PublishedDelta>& delta : read.deltas) {
    const uint32_t number = delta->range - publisher_->first_range();
    Range& range = ranges_[number];
    // A range that was sent whole already has the deltas before.
    if (range.chain == 0 || delta->to_position <= range.position) continue;
    const auto chain = std::find_if(delta->chains.begin(), delta->chains.end(),
                                    [&](const PublishedDelta::Chain& one) { return one.id == range.chain; });
    if (chain == delta->chains.end() || range.position != delta->from_position) {
      Lose(number, now);
      continue;
    }
    for (size_t part = 0; part < delta->bodies.size(); ++part) {
      to.push_back(publisher_->encoder().Part(delta, *chain, part));
    }
    range.position = delta->to_position;
  }
}

void TableWatch::CopyRanges(size_t max_bytes, absl::Time now, std::vector<EncodedDelta>& to) {
  size_t bytes = 0;
  for (const EncodedDelta& delta : to) bytes += delta.bytes();
  while (missing_ > 0 && bytes < max_bytes) {
    Range& range = ranges_[next_missing_];
    RangePublisher& publisher = publisher_->range(next_missing_);
    if (range.missing) {
      publisher_->Sweep(next_missing_);
      // The rows and their encoded form are there at the same time for a moment.
      absl::StatusOr<ByteBudget::Reservation> room = copies_->Reserve(2 * publisher.WholeBytes());
      if (!room.ok()) return;
      const RangePublisher::Whole whole = once_ ? publisher.SendLast() : publisher.SendWhole(now);
      room->ShrinkTo(whole.delta->bytes());
      const auto counted = std::make_shared<CountedDelta>(CountedDelta{whole.delta, *std::move(room)});
      const size_t before = to.size();
      for (size_t part = 0; part < whole.delta->bodies.size(); ++part) {
        to.push_back(publisher_->encoder().Part({counted, whole.delta.get()}, whole.delta->chains[0], part));
      }
      for (size_t i = before; i < to.size(); ++i) bytes += to[i].bytes();
      range = {whole.delta->to_position, whole.chain, false};
      --missing_;
    }
    next_missing_ = (next_missing_ + 1) % ranges_.size();
  }
}

}  // namespace ballast
