// SPDX-License-Identifier: Apache-2.0
#include "server/replication/standby_journal.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "grpcpp/grpcpp.h"
#include "server/replication/shard_stream.h"

namespace ballast {
namespace {

// To a standby that has nothing to do.
constexpr absl::Duration kSignOfLife = absl::Milliseconds(250);

// Of slices that are captured at once, while no push is taken: what is shared with the shard at a time, and what
// changes wait for.
constexpr uint64_t kSlicesElements = uint64_t{2} << 20;
constexpr size_t kSlicesAtOnce = 1024;

// The slices of all tensors.
std::vector<OwnedSlice> SlicesOf(absl::Span<const OwnedTensor> tensors) {
  std::vector<OwnedSlice> slices;
  for (const OwnedTensor& tensor : tensors) {
    for (const v1::SliceRange& range : tensor.slices) {
      slices.push_back({{tensor.spec.id(), range.index()}, range.elements()});
    }
  }
  return slices;
}

// How many of the first slices are captured at once; at least one.
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
  Close(WithReason(v1::ERROR_REASON_DRAINING, absl::UnavailableError("the server ends")));
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
  if (context_ != nullptr) context_->TryCancel();
}

StandbyJournal::Waits StandbyJournal::TakeWaitsLocked(uint64_t position) {
  Waits taken;
  const auto end = waits_.upper_bound(position);
  for (auto wait = waits_.begin(); wait != end; ++wait) taken.push_back(std::move(wait->second));
  waits_.erase(waits_.begin(), end);
  return taken;
}

StandbyJournal::Waits StandbyJournal::LetGoLocked() {
  if (FedLocked()) StopFeedingLocked();
  stage_ = Stage::kNone;
  reported_ = false;
  Waits over = queue_.Clear();
  for (auto& done : TakeWaitsLocked(position_)) over.push_back(std::move(done));
  return over;
}

void StandbyJournal::Feed(const v1::StandbyTarget& target) {
  Waits over;
  {
    absl::MutexLock lock(&mutex_);
    // One that was fed is never fed again: it asks to join anew.
    if (target.incarnation() == standby_) return;
    // The coordinator has forgotten the one before.
    over = LetGoLocked();
    next_target_ = target;
    if (target.incarnation() == 0) standby_ = 0;
  }
  for (const auto& done : over) done(absl::OkStatus());
}

v1::StandbyReport StandbyJournal::Report() {
  v1::StandbyReport report;
  std::optional<std::string> line;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = absl::Now();
    if (const absl::Duration silence = progress_.Silence(now); FedLocked() && silence > options_.patience) {
      reason_ = absl::StrCat("it took in nothing for ", absl::FormatDuration(absl::Trunc(silence, absl::Seconds(1))));
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
  Waits over;
  {
    absl::MutexLock lock(&mutex_);
    const bool lost = report.stage() == v1::StandbyReport::STAGE_LOST && report.incarnation() == standby_;
    if (!lost || stage_ != Stage::kLost) return;
    over = LetGoLocked();
  }
  for (const auto& done : over) done(absl::OkStatus());
}

void StandbyJournal::Close(absl::Status reason) {
  Waits over;
  absl::Status closed;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_.ok()) closed_ = std::move(reason);
    closed = closed_;
    over = queue_.Release();
    for (auto& done : TakeWaitsLocked(position_)) over.push_back(std::move(done));
  }
  for (const auto& done : over) done(closed);
}

std::vector<bool> StandbyJournal::WantedLocked(const internal::v1::ShardRecord& record) const {
  std::vector<bool> wanted;
  if (!transferring_) return wanted;
  for (const internal::v1::LoggedPush::Gradient& gradient : record.push().gradients()) {
    wanted.push_back(sent_.contains({gradient.tensor_id(), gradient.slice_index()}));
  }
  return wanted;
}

absl::StatusOr<uint64_t> StandbyJournal::Append(const internal::v1::ShardRecord& record,
                                                absl::Span<const absl::string_view> behind,
                                                absl::FunctionRef<bool()> admit, absl::FunctionRef<void()> in_order) {
  bool fed = false;
  std::vector<bool> wanted;
  {
    absl::MutexLock lock(&mutex_);
    fed = FedLocked();
    if (fed) wanted = WantedLocked(record);
  }
  // A standby begins to be fed, and slices are captured, while nothing is appended: so no change that has to travel
  // goes without its bytes, and what travels does not change meanwhile.
  std::string bytes;
  if (fed) bytes = wanted.empty() ? JoinChange(record, behind) : JoinPushOf(wanted, record, behind);
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  if (FedLocked()) {
    if (absl::Status room = queue_.CheckRoom(bytes.size()); !room.ok()) return room;
    if (!admit()) return 0;
    queue_.Push(position_ + 1, std::move(bytes));
    declared_ = declared_ || record.has_declaration();
  } else if (!admit()) {
    return 0;
  }
  // The first change is the job's declaration. A standby is fed once that was made: the gate is held until then.
  has_job_ = true;
  in_order();
  return ++position_;
}

void StandbyJournal::AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_.ok() && WaitsLocked() && position > answered_) {
      waits_.emplace(position, std::move(done));
      return;
    }
    if (closed_.ok() && stage_ == Stage::kCatchingUp && queue_.HoldBack(position, done)) return;
    status = closed_;
  }
  done(status);
}

void StandbyJournal::OnAnswer(const internal::v1::ReplicateResponse& answer) {
  Waits over;
  bool news = false;
  std::string line;
  {
    absl::MutexLock lock(&mutex_);
    if (!FedLocked()) return;
    const absl::Time now = absl::Now();
    progress_.Taken(answer.taken(), now);
    answered_ = answer.position();
    if (stage_ == Stage::kCatchingUp && answer.whole()) {
      stage_ = Stage::kClosingUp;
      mark_ = position_;
    }
    news = stage_ == Stage::kClosingUp && answered_ >= mark_;
    if (news) {
      stage_ = Stage::kInStep;
      line = absl::StrCat("standby ", options_.shard, ": in step after ",
                          absl::FormatDuration(absl::Trunc(progress_.took(now), absl::Milliseconds(100))));
    }
    over = TakeWaitsLocked(answered_);
  }
  for (const auto& done : over) done(absl::OkStatus());
  if (!news) return;
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
  grpc::ClientContext context;
  absl::Status end;
  if (absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = options_.open(target.address()); channel.ok()) {
    const auto stub = internal::v1::StandbyService::NewStub(*channel);
    {
      absl::MutexLock lock(&mutex_);
      context_ = &context;
      ended_ = false;
      reason_.clear();
      progress_.Begin(absl::Now());
    }
    options_.log(absl::StrCat("standby ", options_.shard, " at ", target.address(), ": is being brought up to date"));
    const std::unique_ptr<Stream> stream = stub->Replicate(&context);
    std::thread answers([&] {
      internal::v1::ReplicateResponse answer;
      while (stream->Read(&answer)) OnAnswer(answer);
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    });
    FeedStream(target, *stream);
    bool ended = false;
    {
      absl::MutexLock lock(&mutex_);
      ended = ended_;
    }
    if (!ended) context.TryCancel();
    answers.join();
    end = FromGrpcStatus(stream->Finish());
  } else {
    end = channel.status();
  }
  Waits over;
  std::string reason;
  {
    absl::MutexLock lock(&mutex_);
    context_ = nullptr;
    over = queue_.Clear();
    transferring_ = false;
    sent_.clear();
    // One whose place another takes is not lost: the coordinator has forgotten it.
    if (standby_ == target.incarnation() && next_target_.incarnation() == 0) stage_ = Stage::kLost;
    if (reason_.empty()) reason_ = end.ok() ? "it ended the stream" : std::string(end.message());
    reason = reason_;
    // One that was never said to be in step nobody waits for.
    if (!reported_) {
      for (auto& done : TakeWaitsLocked(position_)) over.push_back(std::move(done));
    }
  }
  for (const auto& done : over) done(absl::OkStatus());
  options_.log(
      absl::StrCat("standby ", options_.shard, " at ", target.address(), ": does not follow any more: ", reason));
  options_.on_news();
}

bool StandbyJournal::Send(Stream& stream, const internal::v1::ReplicateRequest& part) {
  bool more = false;
  {
    absl::MutexLock lock(&mutex_);
    progress_.Sent(CountPart(part), absl::Now());
    more = !queue_.empty();
  }
  // More follows at once, and may go with it.
  return stream.Write(part, more ? grpc::WriteOptions().set_buffer_hint() : grpc::WriteOptions());
}

void StandbyJournal::FeedStream(const v1::StandbyTarget& target, Stream& stream) {
  internal::v1::ReplicateRequest hello;
  hello.mutable_hello()->set_shard(options_.shard);
  hello.mutable_hello()->set_standby(target.incarnation());
  bool still = false;
  uint64_t position = 0;
  ShardState outline = shard_->CaptureOutline([&] {
    absl::MutexLock lock(&mutex_);
    // It may have been called off meanwhile.
    still = !stopping_ && standby_ == target.incarnation() && next_target_.incarnation() == 0;
    stage_ = still ? Stage::kCatchingUp : Stage::kNone;
    transferring_ = still;
    declared_ = false;
    sent_.clear();
    answered_ = 0;
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
    // More tensors may have been declared meanwhile.
    outline = shard_->CaptureOutline([&] {
      absl::MutexLock lock(&mutex_);
      all = !declared_;
      declared_ = false;
      transferring_ = !all;
      position = position_;
    });
    // The standby has to know tensors before their slices come.
    if (!all && !SendChangesUpTo(stream, position)) return;
    slices = SlicesOf(outline.tensors);
    absl::MutexLock lock(&mutex_);
    slices.erase(std::remove_if(slices.begin(), slices.end(),
                                [this](const OwnedSlice& slice) {
                                  mutex_.AssertReaderHeld();
                                  return sent_.contains(slice.key);
                                }),
                 slices.end());
  }
  internal::v1::TransferEnd end;
  end.mutable_windows()->Add(outline.windows.begin(), outline.windows.end());
  end.set_slices(sent);
  Follow(stream, position, end);
}

bool StandbyJournal::SendSlices(Stream& stream, absl::Span<const OwnedSlice> slices) {
  std::vector<SliceKey> keys;
  for (const OwnedSlice& slice : slices) keys.push_back(slice.key);
  uint64_t position = 0;
  const std::vector<ShardState::SliceEntry> captured = shard_->CaptureSlices(keys, [&] {
    absl::MutexLock lock(&mutex_);
    sent_.insert(keys.begin(), keys.end());
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
  // Half of the link is the changes'; if they want more, pushes are slowed, so that the transfer comes to its end.
  return SendChanges(stream, bytes);
}

bool StandbyJournal::SendChange(Stream& stream, const ChangeQueue::Change& change) {
  return SendRecord(internal::v1::ReplicateRequest::KIND_CHANGE, change.position, change.bytes,
                    [&](const internal::v1::ReplicateRequest& part) { return Send(stream, part); });
}

bool StandbyJournal::SendChanges(Stream& stream, uint64_t bytes) {
  uint64_t sent = 0;
  while (sent < bytes) {
    const std::optional<ChangeQueue::Change> change = NextChange(absl::ZeroDuration());
    if (!change.has_value()) return true;
    if (!SendChange(stream, *change)) return false;
    sent += change->bytes.size();
  }
  return true;
}

bool StandbyJournal::SendChangesUpTo(Stream& stream, uint64_t position) {
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

void StandbyJournal::Follow(Stream& stream, uint64_t end_position, const internal::v1::TransferEnd& end) {
  const auto send = [&](const internal::v1::ReplicateRequest& part) { return Send(stream, part); };
  bool ended = false;
  while (true) {
    const std::optional<ChangeQueue::Change> change = NextChange(ended ? kSignOfLife : absl::ZeroDuration());
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
