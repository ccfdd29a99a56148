// SPDX-License-Identifier: Apache-2.0
#include "server/replication/standby_journal.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
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
      queue_(options_.max_queued_bytes, options_.least_pace_bytes),
      thread_([this] { FeedUntilStopped(); }) {}

StandbyJournal::~StandbyJournal() {
  Close(WithReason(v1::ERROR_REASON_DRAINING, absl::UnavailableError("the server is stopping")));
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    StopFeedingLocked();
  }
  thread_.join();
}

void StandbyJournal::BeginJob() {
  absl::MutexLock lock(&mutex_);
  has_job_ = true;
}

void StandbyJournal::BeginServing(uint64_t server) {
  absl::MutexLock lock(&mutex_);
  server_ = server;
}

void StandbyJournal::StopFeedingLocked() {
  if (stream_ != nullptr) stream_->Cancel();
}

StandbyJournal::Waits StandbyJournal::TakeWaitsLocked(uint64_t position) {
  Waits taken;
  const auto end = waits_.upper_bound(position);
  for (auto wait = waits_.begin(); wait != end; ++wait) taken.push_back(std::move(wait->second));
  waits_.erase(waits_.begin(), end);
  return taken;
}

StandbyJournal::Waits StandbyJournal::DropStandbyLocked() {
  if (FedLocked()) StopFeedingLocked();
  stage_ = Stage::kNone;
  reported_ = false;
  Waits released = queue_.Clear();
  for (auto& done : TakeWaitsLocked(position_)) released.push_back(std::move(done));
  return released;
}

void StandbyJournal::Feed(const v1::StandbyTarget& target) {
  Waits released;
  {
    absl::MutexLock lock(&mutex_);
    // A standby never follows twice: it joins again as a new incarnation.
    if (target.incarnation() == standby_) return;
    // The coordinator has already dropped the previous standby.
    released = DropStandbyLocked();
    next_target_ = target;
    if (target.incarnation() == 0) standby_ = 0;
  }
  for (const auto& done : released) done(absl::OkStatus());
}

v1::StandbyReport StandbyJournal::Report() {
  v1::StandbyReport report;
  std::optional<std::string> line;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = absl::Now();
    if (const absl::Duration idle = progress_.Silence(now); FedLocked() && idle > options_.timeout) {
      reason_ = absl::StrCat("timed out after ", absl::FormatDuration(absl::Trunc(idle, absl::Seconds(1))),
                             " waiting for it to process data");
      StopFeedingLocked();
    }
    report.set_incarnation(standby_);
    if (stage_ != Stage::kNone) progress_.Fill(queue_.bytes(), now, report);
    queue_.set_pace_bytes(
        std::clamp(report.bytes_per_second() / 2, options_.least_pace_bytes, options_.most_pace_bytes));
    switch (stage_) {
      case Stage::kNone:
        report.clear_incarnation();
        break;
      case Stage::kCatchingUp:
      case Stage::kClosingUp:
        report.set_stage(v1::StandbyReport::STAGE_CATCHING_UP);
        line = progress_.Line(report, now);
        break;
      case Stage::kInStep:
        reported_ = true;
        report.set_stage(v1::StandbyReport::STAGE_IN_STEP);
        break;
      case Stage::kLost:
        report.set_stage(v1::StandbyReport::STAGE_LOST);
        report.set_reason(reason_);
        break;
    }
  }
  if (line.has_value()) options_.log(absl::StrCat("standby ", options_.shard, ": catching up: ", *line));
  return report;
}

void StandbyJournal::OnHeartbeat(const v1::StandbyReport& report) {
  Waits released;
  {
    absl::MutexLock lock(&mutex_);
    const bool lost = report.stage() == v1::StandbyReport::STAGE_LOST && report.incarnation() == standby_;
    if (!lost || stage_ != Stage::kLost) return;
    released = DropStandbyLocked();
  }
  for (const auto& done : released) done(absl::OkStatus());
}

void StandbyJournal::Close(absl::Status reason) {
  Waits released;
  absl::Status closed;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_.ok()) closed_ = std::move(reason);
    closed = closed_;
    released = queue_.Release();
    for (auto& done : TakeWaitsLocked(position_)) released.push_back(std::move(done));
  }
  for (const auto& done : released) done(closed);
}

absl::StatusOr<uint64_t> StandbyJournal::Append(const internal::v1::ShardRecord& record,
                                                absl::Span<const absl::string_view> behind,
                                                absl::FunctionRef<bool()> admit, absl::FunctionRef<void()> in_order) {
  bool fed = false;
  std::vector<bool> wanted;
  {
    absl::MutexLock lock(&mutex_);
    fed = FedLocked();
    if (fed) wanted = sent_.Wanted(record);
  }
  // No record is appended while a standby starts to follow or slices are captured. So every change that must be sent
  // has its bytes, and the set of gradients to send does not change meanwhile.
  std::string bytes;
  if (fed) bytes = wanted.empty() ? JoinChange(record, behind) : JoinPushOf(wanted, record, behind);
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  if (FedLocked()) {
    if (absl::Status room = queue_.CheckRoom(bytes.size()); !room.ok()) return room;
    if (!admit()) return 0;
    queue_.Push(position_ + 1, std::move(bytes));
    if (record.has_declaration()) sent_.OnDeclaration();
  } else if (!admit()) {
    return 0;
  }
  // The first change is the job's declaration. A standby starts to follow only after it is applied, because the gate
  // is held until then.
  has_job_ = true;
  in_order();
  return ++position_;
}

void StandbyJournal::AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_.ok() && WaitsLocked() && position > acknowledged_) {
      waits_.emplace(position, std::move(done));
      return;
    }
    if (closed_.ok() && stage_ == Stage::kCatchingUp && queue_.HoldBack(position, done)) return;
    status = closed_;
  }
  done(status);
}

void StandbyJournal::OnResponse(const internal::v1::ReplicateResponse& response) {
  Waits released;
  bool in_step = false;
  std::string line;
  {
    absl::MutexLock lock(&mutex_);
    if (!FedLocked()) return;
    const absl::Time now = absl::Now();
    progress_.Taken(response.taken(), now);
    acknowledged_ = response.position();
    if (stage_ == Stage::kCatchingUp && response.whole()) {
      stage_ = Stage::kClosingUp;
      mark_ = position_;
    }
    in_step = stage_ == Stage::kClosingUp && acknowledged_ >= mark_;
    if (in_step) {
      stage_ = Stage::kInStep;
      line = absl::StrCat("standby ", options_.shard, ": in step after ",
                          absl::FormatDuration(absl::Trunc(progress_.took(now), absl::Milliseconds(100))));
    }
    released = TakeWaitsLocked(acknowledged_);
  }
  for (const auto& done : released) done(absl::OkStatus());
  if (!in_step) return;
  options_.log(line);
  options_.on_news();
}

void StandbyJournal::FeedUntilStopped() {
  while (true) {
    v1::StandbyTarget target;
    {
      absl::MutexLock lock(&mutex_);
      const auto due = [this] {
        mutex_.AssertReaderHeld();
        return stopping_ || (has_job_ && server_ > 0 && next_target_.incarnation() > 0);
      };
      mutex_.Await(absl::Condition(&due));
      if (stopping_) return;
      target = std::exchange(next_target_, {});
      standby_ = target.incarnation();
      stage_ = Stage::kNone;
    }
    FeedOne(target);
  }
}

void StandbyJournal::FeedOne(const v1::StandbyTarget& target) {
  absl::Status end;
  if (absl::StatusOr<std::unique_ptr<StandbyStream>> stream = options_.open(target.address()); stream.ok()) {
    {
      absl::MutexLock lock(&mutex_);
      stream_ = stream->get();
      ended_ = false;
      reason_.clear();
      progress_.Begin(absl::Now());
    }
    options_.log(absl::StrCat("standby ", options_.shard, " at ", target.address(), ": sending it the shard's state"));
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
  Waits released;
  std::string reason;
  {
    absl::MutexLock lock(&mutex_);
    released = queue_.Clear();
    sent_.Clear();
    // A replaced standby is not lost: the coordinator has already dropped it.
    if (standby_ == target.incarnation() && next_target_.incarnation() == 0) stage_ = Stage::kLost;
    if (reason_.empty()) reason_ = end.ok() ? "the standby ended the stream" : std::string(end.message());
    reason = reason_;
    // No change waits for a standby that was never reported in step.
    if (!reported_) {
      for (auto& done : TakeWaitsLocked(position_)) released.push_back(std::move(done));
    }
  }
  for (const auto& done : released) done(absl::OkStatus());
  options_.log(absl::StrCat("standby ", options_.shard, " at ", target.address(), ": stopped following: ", reason));
  options_.on_news();
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
    // The target may have changed meanwhile.
    still = !stopping_ && standby_ == target.incarnation() && next_target_.incarnation() == 0;
    stage_ = still ? Stage::kCatchingUp : Stage::kNone;
    if (still) sent_.Begin();
    acknowledged_ = 0;
    position = position_;
    hello.mutable_hello()->set_server(server_);
  });
  const auto send = [&](const internal::v1::ReplicateRequest& part) { return Send(stream, part); };
  if (!still || !send(hello) || !SendOutline(options_.shard, position, outline, send)) return;
  std::vector<OwnedSlice> slices = SlicesOf(outline.tensors);
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
    // More tensors may have been declared during the transfer.
    outline = shard_->CaptureOutline([&] {
      absl::MutexLock lock(&mutex_);
      all = sent_.TryEnd();
      position = position_;
    });
    // The standby needs a tensor's declaration before its slices.
    if (!all && !SendChangesUpTo(stream, position)) return;
    slices = SlicesOf(outline.tensors);
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
    position = position_;
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
      return ended_ || !FedLocked() || stopping_ || !queue_.empty();
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
      if (ended_ || !FedLocked() || stopping_) return;
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
