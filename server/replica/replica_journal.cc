// SPDX-License-Identifier: Apache-2.0
#include "server/replica/replica_journal.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/error_reason.h"
#include "grpcpp/grpcpp.h"
#include "server/replica/shard_stream.h"

namespace ballast {
namespace {

// To a standby that has nothing to do.
constexpr absl::Duration kSignOfLife = absl::Milliseconds(250);

}  // namespace

ReplicaJournal::ReplicaJournal(Options options, ParameterShard* shard)
    : options_(std::move(options)), shard_(shard), thread_([this] { FeedUntilStopped(); }) {}

ReplicaJournal::~ReplicaJournal() {
  Close(WithReason(v1::ERROR_REASON_DRAINING, absl::UnavailableError("the server ends")));
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    StopFeedingLocked();
  }
  thread_.join();
}

void ReplicaJournal::BeginJob() {
  absl::MutexLock lock(&mutex_);
  has_job_ = true;
}

void ReplicaJournal::BeginServing(uint64_t server) {
  absl::MutexLock lock(&mutex_);
  server_ = server;
}

void ReplicaJournal::StopFeedingLocked() {
  if (context_ != nullptr) context_->TryCancel();
}

ReplicaJournal::Waits ReplicaJournal::TakeWaitsLocked(uint64_t position) {
  Waits taken;
  const auto end = waits_.upper_bound(position);
  for (auto wait = waits_.begin(); wait != end; ++wait) taken.push_back(std::move(wait->second));
  waits_.erase(waits_.begin(), end);
  return taken;
}

ReplicaJournal::Waits ReplicaJournal::LetGoLocked() {
  if (FedLocked()) StopFeedingLocked();
  stage_ = Stage::kNone;
  reported_ = false;
  queue_.clear();
  queued_bytes_ = 0;
  return TakeWaitsLocked(position_);
}

void ReplicaJournal::Feed(const v1::StandbyTarget& target) {
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

v1::StandbyReport ReplicaJournal::Report() {
  absl::MutexLock lock(&mutex_);
  if (FedLocked() && absl::Now() - unanswered_since_ > options_.patience) StopFeedingLocked();
  v1::StandbyReport report;
  report.set_incarnation(standby_);
  switch (stage_) {
    case Stage::kNone:
      report.clear_incarnation();
      break;
    case Stage::kCatchingUp:
    case Stage::kClosingUp:
      report.set_stage(v1::StandbyReport::STAGE_CATCHING_UP);
      break;
    case Stage::kInStep:
      reported_ = true;
      report.set_stage(v1::StandbyReport::STAGE_IN_STEP);
      break;
    case Stage::kLost:
      report.set_stage(v1::StandbyReport::STAGE_LOST);
      break;
  }
  return report;
}

void ReplicaJournal::OnHeard(const v1::StandbyReport& report) {
  Waits over;
  {
    absl::MutexLock lock(&mutex_);
    const bool lost = report.stage() == v1::StandbyReport::STAGE_LOST && report.incarnation() == standby_;
    if (!lost || stage_ != Stage::kLost) return;
    over = LetGoLocked();
  }
  for (const auto& done : over) done(absl::OkStatus());
}

void ReplicaJournal::Close(absl::Status reason) {
  Waits over;
  absl::Status closed;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_.ok()) closed_ = std::move(reason);
    closed = closed_;
    over = TakeWaitsLocked(position_);
  }
  for (const auto& done : over) done(closed);
}

absl::StatusOr<uint64_t> ReplicaJournal::Append(const internal::v1::ShardRecord& record,
                                                absl::Span<const absl::string_view> behind,
                                                absl::FunctionRef<bool()> admit, absl::FunctionRef<void()> in_order) {
  bool fed = false;
  {
    absl::MutexLock lock(&mutex_);
    fed = FedLocked();
  }
  // A standby begins to be fed while nothing is appended, so that none that needs them goes without the bytes.
  std::string bytes = fed ? JoinChange(record, behind) : std::string();
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  if (FedLocked()) {
    if (queued_bytes_ + bytes.size() > options_.max_queued_bytes) {
      return WithReason(v1::ERROR_REASON_STANDBY_BEHIND,
                        absl::ResourceExhaustedError(absl::StrCat("the standby lags by ", queued_bytes_,
                                                                  " bytes, want at most ", options_.max_queued_bytes)));
    }
    if (!admit()) return 0;
    queued_bytes_ += bytes.size();
    queue_.push_back({position_ + 1, std::move(bytes)});
    unanswered_since_ = std::min(unanswered_since_, absl::Now());
  } else if (!admit()) {
    return 0;
  }
  in_order();
  return ++position_;
}

void ReplicaJournal::AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_.ok() && WaitsLocked() && position > answered_) {
      waits_.emplace(position, std::move(done));
      return;
    }
    status = closed_;
  }
  done(status);
}

void ReplicaJournal::OnAnswer(uint64_t position) {
  Waits over;
  bool news = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!FedLocked()) return;
    answered_ = position;
    unanswered_since_ = answered_ < position_ ? absl::Now() : absl::InfiniteFuture();
    if (stage_ == Stage::kCatchingUp) {
      stage_ = Stage::kClosingUp;
      mark_ = position_;
    }
    news = stage_ == Stage::kClosingUp && answered_ >= mark_;
    if (news) stage_ = Stage::kInStep;
    over = TakeWaitsLocked(position);
  }
  for (const auto& done : over) done(absl::OkStatus());
  if (news) options_.on_news();
}

void ReplicaJournal::FeedUntilStopped() {
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
    }
    FeedOne(target);
  }
}

void ReplicaJournal::FeedOne(const v1::StandbyTarget& target) {
  grpc::ClientContext context;
  std::unique_ptr<internal::v1::StandbyService::Stub> stub;
  std::unique_ptr<Stream> stream;
  std::thread answers;
  if (absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = options_.open(target.address()); channel.ok()) {
    stub = internal::v1::StandbyService::NewStub(*channel);
    internal::v1::ReplicateRequest hello;
    hello.mutable_hello()->set_shard(options_.shard);
    hello.mutable_hello()->set_standby(target.incarnation());
    {
      absl::MutexLock lock(&mutex_);
      hello.mutable_hello()->set_server(server_);
      context_ = &context;
      ended_ = false;
    }
    stream = stub->Replicate(&context);
    answers = std::thread([&] {
      internal::v1::ReplicateResponse answer;
      while (stream->Read(&answer)) OnAnswer(answer.position());
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    });
    uint64_t from = 0;
    const ShardCapture capture = shard_->Capture([&] {
      absl::MutexLock lock(&mutex_);
      // It may have been called off meanwhile.
      const bool still = !stopping_ && standby_ == target.incarnation() && next_target_.incarnation() == 0;
      stage_ = still ? Stage::kCatchingUp : Stage::kNone;
      from = position_;
    });
    const auto send = [&](const internal::v1::ReplicateRequest& part) { return stream->Write(part); };
    if (send(hello) && SendSnapshot(options_.shard, from, capture, send)) SendChanges(*stream);
    context.TryCancel();
    answers.join();
    stream->Finish();
  }
  Waits over;
  {
    absl::MutexLock lock(&mutex_);
    context_ = nullptr;
    queue_.clear();
    queued_bytes_ = 0;
    unanswered_since_ = absl::InfiniteFuture();
    if (standby_ == target.incarnation()) stage_ = Stage::kLost;
    // One that was never said to be in step nobody waits for.
    if (!reported_) over = TakeWaitsLocked(position_);
  }
  for (const auto& done : over) done(absl::OkStatus());
  options_.on_news();
}

void ReplicaJournal::SendChanges(Stream& stream) {
  while (true) {
    Change change;
    {
      absl::MutexLock lock(&mutex_);
      const auto due = [this] {
        mutex_.AssertReaderHeld();
        return ended_ || !FedLocked() || stopping_ || !queue_.empty();
      };
      mutex_.AwaitWithTimeout(absl::Condition(&due), kSignOfLife);
      if (ended_ || !FedLocked() || stopping_) return;
      if (!queue_.empty()) {
        change = std::move(queue_.front());
        queue_.pop_front();
        queued_bytes_ -= change.bytes.size();
      }
    }
    if (change.position == 0) {
      if (!stream.Write(internal::v1::ReplicateRequest())) return;
      continue;
    }
    const bool sent = SendRecord(internal::v1::ReplicateRequest::KIND_CHANGE, change.position, change.bytes,
                                 [&](const internal::v1::ReplicateRequest& part) { return stream.Write(part); });
    if (!sent) return;
  }
}

}  // namespace ballast
