// SPDX-License-Identifier: Apache-2.0
#include "server/replication/standby_journal.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/concurrency/named_thread.h"
#include "common/status/error_reason.h"
#include "server/replication/shard_stream.h"

namespace ballast {
namespace {

// Interval of the empty messages that show an idle standby that the server is alive.
constexpr absl::Duration kKeepaliveInterval = absl::Milliseconds(250);

// Limits of one capture of slices, which blocks pushes and shares memory with the shard: changes wait until these
// slices are sent.
constexpr uint64_t kSlicesElements = uint64_t{2} << 20;
constexpr size_t kSlicesAtOnce = 1024;

// Ranges of a table that are captured together. Rows that change before they are sent are kept twice until then.
constexpr uint32_t kRangesAtOnce = 64;

std::vector<OwnedSlice> SlicesOf(absl::Span<const OwnedTensor> tensors) {
  std::vector<OwnedSlice> slices;
  for (const OwnedTensor& tensor : tensors) {
    for (const v1::SliceRange& range : tensor.slices) {
      slices.push_back({{tensor.spec.id(), range.index()}, range.elements()});
    }
  }
  return slices;
}

// Number of leading slices to capture together; at least one.
size_t CountAtOnce(absl::Span<const OwnedSlice> slices) {
  uint64_t elements = 0;
  size_t count = 0;
  while (count < std::min(slices.size(), kSlicesAtOnce)) {
    elements += slices[count].elements;
    if (count > 0 && elements > kSlicesElements) break;
    ++count;
  }
  return count;
}

}  // namespace

StandbyJournal::StandbyJournal(Options options, ParameterShard* shard)
    : options_(std::move(options)),
      shard_(shard),
      state_(options_.shard, options_.timeout),
      queue_(options_.max_queued_bytes, options_.least_pace_bytes),
      thread_(NamedThread("standby feed", [this] { FeedUntilStopped(); })) {}

StandbyJournal::~StandbyJournal() {
  Close(WithReason(v1::ERROR_REASON_DRAINING, absl::UnavailableError("the server is stopping")));
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (stream_ != nullptr) stream_->Cancel();
  }
  thread_.join();
}

void StandbyJournal::Handle(absl::FunctionRef<ReplicationState::Actions(ReplicationState&)> event) {
  ReplicationState::Actions actions;
  Waits released;
  {
    absl::MutexLock lock(&mutex_);
    actions = event(state_);
    if (actions.cancel && stream_ != nullptr) stream_->Cancel();
    if (actions.queue == ReplicationState::Actions::Queue::kClear) released = queue_.Clear();
    if (actions.queue == ReplicationState::Actions::Queue::kRelease) released = queue_.Release();
    const auto end = waits_.upper_bound(actions.release);
    for (auto wait = waits_.begin(); wait != end; ++wait) released.push_back(std::move(wait->second));
    waits_.erase(waits_.begin(), end);
  }
  for (const auto& done : released) done(actions.status);
  if (!actions.log.empty()) options_.log(actions.log);
  if (actions.report_now) options_.on_news();
}

void StandbyJournal::BeginJob() {
  absl::MutexLock lock(&mutex_);
  state_.BeginJob();
}

void StandbyJournal::BeginServing(uint64_t server) {
  absl::MutexLock lock(&mutex_);
  state_.BeginServing(server);
}

void StandbyJournal::Feed(const v1::StandbyTarget& target) {
  Handle([&](ReplicationState& state) { return state.SetTarget(target); });
}

v1::StandbyReport StandbyJournal::Report() {
  v1::StandbyReport report;
  Handle([&](ReplicationState& state) {
    mutex_.AssertHeld();
    const absl::Time now = absl::Now();
    ReplicationState::Actions actions = state.OnTime(progress_.Silence(now));
    report = state.Report();
    if (report.stage() != v1::StandbyReport::STAGE_UNSPECIFIED) progress_.Fill(queue_.bytes(), now, report);
    queue_.set_pace_bytes(
        std::clamp(report.bytes_per_second() / 2, options_.least_pace_bytes, options_.most_pace_bytes));
    if (report.stage() == v1::StandbyReport::STAGE_CATCHING_UP) {
      const std::optional<std::string> line = progress_.Line(report, now);
      if (line.has_value()) actions.log = absl::StrCat("standby ", options_.shard, ": catching up: ", *line);
    }
    return actions;
  });
  return report;
}

void StandbyJournal::OnHeartbeat(const v1::StandbyReport& report) {
  Handle([&](ReplicationState& state) { return state.OnHeartbeat(report); });
}

void StandbyJournal::Close(absl::Status reason) {
  Handle([&](ReplicationState& state) { return state.Close(std::move(reason)); });
}

absl::StatusOr<uint64_t> StandbyJournal::Append(const internal::v1::ShardRecord& record,
                                                absl::Span<const absl::string_view> behind,
                                                absl::FunctionRef<bool()> admit, absl::FunctionRef<void()> in_order) {
  bool fed = false;
  std::vector<bool> wanted;
  {
    absl::MutexLock lock(&mutex_);
    fed = state_.fed();
    if (fed) wanted = sent_.Wanted(record);
  }
  // No record is appended while a standby starts to follow or slices are captured. So every change that must be sent
  // has its bytes, and the set of gradients to send does not change meanwhile.
  std::string bytes;
  if (fed) bytes = wanted.empty() ? JoinChange(record, behind) : JoinPushOf(wanted, record, behind);
  absl::MutexLock lock(&mutex_);
  if (!state_.closed().ok()) return state_.closed();
  if (state_.fed()) {
    if (absl::Status room = queue_.CheckRoom(bytes.size()); !room.ok()) return room;
    if (!admit()) return 0;
    queue_.Push(state_.position() + 1, std::move(bytes));
    if (record.has_declaration()) sent_.OnDeclaration();
  } else if (!admit()) {
    return 0;
  }
  in_order();
  return state_.Append();
}

void StandbyJournal::AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    switch (state_.WaitOf(position)) {
      case ReplicationState::Wait::kAcknowledgment:
        waits_.emplace(position, std::move(done));
        return;
      case ReplicationState::Wait::kLink:
        if (queue_.Defer(position, done)) return;
        break;
      case ReplicationState::Wait::kNothing:
        status = state_.closed();
        break;
    }
  }
  done(status);
}

void StandbyJournal::OnResponse(const internal::v1::ReplicateResponse& response) {
  Handle([&](ReplicationState& state) {
    mutex_.AssertHeld();
    const absl::Time now = absl::Now();
    progress_.Taken(response.taken(), now);
    return state.OnResponse(response.position(), response.whole(), progress_.took(now));
  });
}

void StandbyJournal::FeedUntilStopped() {
  while (true) {
    v1::StandbyTarget target;
    {
      absl::MutexLock lock(&mutex_);
      const auto due = [this] {
        mutex_.AssertReaderHeld();
        return stopping_ || state_.HasTarget();
      };
      mutex_.Await(absl::Condition(&due));
      if (stopping_) return;
      target = state_.TakeTarget();
    }
    FeedOne(target);
  }
}

void StandbyJournal::FeedOne(const v1::StandbyTarget& target) {
  absl::Status end;
  if (absl::StatusOr<std::unique_ptr<StandbyStream>> stream = options_.open(target.address()); stream.ok()) {
    Handle([&](ReplicationState& state) {
      mutex_.AssertHeld();
      stream_ = stream->get();
      ended_ = false;
      progress_.Begin(absl::Now());
      return state.OnOpen(target);
    });
    std::thread responses([&] {
      internal::v1::ReplicateResponse response;
      while ((*stream)->Read(response)) OnResponse(response);
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    });
    FeedStream(target, **stream);
    bool ended = false;
    {
      absl::MutexLock lock(&mutex_);
      ended = ended_;
    }
    if (!ended) (*stream)->Cancel();
    responses.join();
    end = (*stream)->Finish();
    absl::MutexLock lock(&mutex_);
    stream_ = nullptr;
  } else {
    end = stream.status();
  }
  Handle([&](ReplicationState& state) {
    mutex_.AssertHeld();
    sent_.Clear();
    return state.OnStreamEnd(target, end);
  });
}

bool StandbyJournal::Send(StandbyStream& stream, const internal::v1::ReplicateRequest& part) {
  bool more = false;
  {
    absl::MutexLock lock(&mutex_);
    progress_.Sent(CountPart(part), absl::Now());
    more = !queue_.empty();
  }
  return stream.Write(part, more);
}

void StandbyJournal::FeedStream(const v1::StandbyTarget& target, StandbyStream& stream) {
  internal::v1::ReplicateRequest hello;
  hello.mutable_hello()->set_shard(options_.shard);
  hello.mutable_hello()->set_standby(target.incarnation());
  bool still = false;
  uint64_t position = 0;
  ShardState outline = shard_->CaptureOutline([&] {
    absl::MutexLock lock(&mutex_);
    still = !stopping_ && state_.BeginTransfer(target);
    if (still) sent_.Begin();
    position = state_.position();
    hello.mutable_hello()->set_server(state_.server());
  });
  const auto send = [&](const internal::v1::ReplicateRequest& part) { return Send(stream, part); };
  if (!still || !send(hello) || !SendOutline(options_.shard, position, outline, send)) return;
  std::vector<OwnedSlice> slices = SlicesOf(outline.tensors);
  std::vector<OwnedTable> tables = outline.tables;
  std::set<uint32_t> sent_tables;
  uint64_t sent = 0;
  for (bool all = false; !all;) {
    const uint64_t total = shard_->status().state_bytes;
    {
      absl::MutexLock lock(&mutex_);
      progress_.SetTotal(total);
    }
    for (absl::Span<const OwnedSlice> left = slices; !left.empty();) {
      const size_t count = CountAtOnce(left);
      if (!SendSlices(stream, left.first(count))) return;
      left.remove_prefix(count);
    }
    sent += slices.size();
    if (!SendTables(stream, tables)) return;
    for (const OwnedTable& table : tables) sent_tables.insert(table.spec.id());
    // More tensors or tables may have been declared during the transfer.
    outline = shard_->CaptureOutline([&] {
      absl::MutexLock lock(&mutex_);
      all = sent_.TryEnd();
      position = state_.position();
    });
    // The standby needs a declaration before what was declared.
    if (!all && !SendChangesUpTo(stream, position)) return;
    slices = SlicesOf(outline.tensors);
    tables = outline.tables;
    std::erase_if(tables, [&](const OwnedTable& table) { return sent_tables.contains(table.spec.id()); });
    absl::MutexLock lock(&mutex_);
    slices = sent_.Unsent(std::move(slices));
  }
  internal::v1::TransferEnd end;
  end.mutable_windows()->Add(outline.windows.begin(), outline.windows.end());
  end.set_slices(sent);
  Follow(stream, position, end);
}

bool StandbyJournal::SendSlices(StandbyStream& stream, absl::Span<const OwnedSlice> slices) {
  std::vector<SliceKey> keys;
  for (const OwnedSlice& slice : slices) keys.push_back(slice.key);
  uint64_t position = 0;
  const std::vector<ShardState::SliceEntry> captured = shard_->CaptureSlices(keys, [&] {
    absl::MutexLock lock(&mutex_);
    sent_.Add(keys);
    position = state_.position();
  });
  uint64_t bytes = 0;
  for (const ShardState::SliceEntry& slice : captured) {
    const auto send = [&](const internal::v1::ReplicateRequest& part) { return Send(stream, part); };
    if (!SendSlice(position, slice, send)) return false;
    uint64_t slice_bytes = 0;
    for (const ValueBuffer& array : slice.weights.arrays) slice_bytes += array.size() * sizeof(float);
    bytes += slice_bytes;
    absl::MutexLock lock(&mutex_);
    progress_.AddDone(slice_bytes);
  }
  // Changes get half of the link. If they need more, pushes are slowed so that the transfer completes.
  return SendChanges(stream, bytes);
}

bool StandbyJournal::SendTables(StandbyStream& stream, absl::Span<const OwnedTable> tables) {
  return std::all_of(tables.begin(), tables.end(), [&](const OwnedTable& table) { return SendTable(stream, table); });
}

bool StandbyJournal::SendTable(StandbyStream& stream, const OwnedTable& table) {
  const auto send = [&](const internal::v1::ReplicateRequest& part) { return Send(stream, part); };
  const v1::RangeSpan& span = table.spans[0];
  const uint32_t end = span.first() + span.count();
  for (uint32_t first = span.first(); first < end; first += kRangesAtOnce) {
    uint64_t position = 0;
    const std::optional<ShardState::TableEntry> captured =
        shard_->CaptureRanges(table.spec.id(), first, std::min(kRangesAtOnce, end - first), [&] {
          absl::MutexLock lock(&mutex_);
          position = state_.position();
        });
    if (!captured.has_value()) return false;
    if (first == span.first() && !ballast::SendTable(position, *captured, send)) return false;
    uint64_t bytes = 0;
    while (const std::optional<RowsPiece> piece = captured->rows->Next()) {
      if (!SendRows(position, *captured, *piece, send)) return false;
      const uint64_t piece_bytes = piece->rows.hashes.size() * captured->rows->row_bytes();
      bytes += piece_bytes;
      absl::MutexLock lock(&mutex_);
      progress_.AddDone(piece_bytes);
    }
    // After the last piece, because a change must not come between pieces of one range.
    if (!SendChanges(stream, bytes)) return false;
  }
  return true;
}

bool StandbyJournal::SendChange(StandbyStream& stream, const ChangeQueue::Change& change) {
  return SendRecord(internal::v1::ReplicateRequest::KIND_CHANGE, change.position, change.bytes,
                    [&](const internal::v1::ReplicateRequest& part) { return Send(stream, part); });
}

bool StandbyJournal::SendChanges(StandbyStream& stream, uint64_t bytes) {
  uint64_t sent = 0;
  while (sent < bytes) {
    const std::optional<ChangeQueue::Change> change = NextChange(absl::ZeroDuration());
    if (!change.has_value()) return true;
    if (!SendChange(stream, *change)) return false;
    sent += change->bytes.size();
  }
  return true;
}

bool StandbyJournal::SendChangesUpTo(StandbyStream& stream, uint64_t position) {
  while (true) {
    const std::optional<ChangeQueue::Change> change = NextChange(absl::ZeroDuration());
    if (!change.has_value()) return true;
    if (!SendChange(stream, *change)) return false;
    if (change->position >= position) return true;
  }
}

std::optional<ChangeQueue::Change> StandbyJournal::NextChange(absl::Duration wait) {
  Waits released;
  std::optional<ChangeQueue::Change> change;
  {
    absl::MutexLock lock(&mutex_);
    const auto due = [this] {
      mutex_.AssertReaderHeld();
      return !FollowsLocked() || !queue_.empty();
    };
    mutex_.AwaitWithTimeout(absl::Condition(&due), wait);
    change = queue_.Pop(released);
  }
  for (const auto& done : released) done(absl::OkStatus());
  return change;
}

void StandbyJournal::Follow(StandbyStream& stream, uint64_t end_position, const internal::v1::TransferEnd& end) {
  const auto send = [&](const internal::v1::ReplicateRequest& part) { return Send(stream, part); };
  bool ended = false;
  while (true) {
    const std::optional<ChangeQueue::Change> change = NextChange(ended ? kKeepaliveInterval : absl::ZeroDuration());
    {
      absl::MutexLock lock(&mutex_);
      if (!FollowsLocked()) return;
    }
    const bool ends = !ended && (!change.has_value() || change->position > end_position);
    if (ends && !SendEnd(end_position, end, send)) return;
    const bool idle = ended && !change.has_value();
    ended = ended || ends;
    if (idle && !send(internal::v1::ReplicateRequest())) return;
    if (change.has_value() && !SendChange(stream, *change)) return;
  }
}

}  // namespace ballast
