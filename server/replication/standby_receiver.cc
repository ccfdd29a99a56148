// SPDX-License-Identifier: Apache-2.0
#include "server/replication/standby_receiver.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status/error_reason.h"
#include "common/storage/record_log.h"
#include "server/replication/shard_stream.h"

namespace ballast {
namespace {

// Timeout for a message from the server, which sends one at least every 250 ms.
constexpr absl::Duration kServerTimeout = absl::Milliseconds(1200);

}  // namespace

void StandbyReceiver::Begin(uint64_t standby) {
  absl::MutexLock lock(&mutex_);
  standby_ = standby;
}

absl::Status StandbyReceiver::Open(const internal::v1::ReplicateRequest& first) {
  const internal::v1::ReplicateHello& hello = first.hello();
  absl::MutexLock lock(&mutex_);
  if (hello.shard() != rank_) {
    return WithReason(v1::ERROR_REASON_NOT_OWNER, absl::FailedPreconditionError(absl::StrCat(
                                                      "replicate: got shard ", hello.shard(), ", want shard ", rank_)));
  }
  if (standby_ == 0 || hello.standby() != standby_) {
    return WithReason(v1::ERROR_REASON_MEMBER_LOST,
                      absl::FailedPreconditionError(
                          absl::StrCat("replicate: standby ", rank_, ": got incarnation ", hello.standby(), ", want ",
                                       standby_ == 0 ? "none: this server is not a standby" : absl::StrCat(standby_))));
  }
  if (stage_ != Stage::kIdle) {
    return WithReason(v1::ERROR_REASON_MEMBER_LOST,
                      absl::FailedPreconditionError(
                          absl::StrCat("replicate: standby ", rank_, " has already followed a server; restart it")));
  }
  stage_ = Stage::kFollowing;
  response_.set_taken(CountPart(first));
  return absl::OkStatus();
}

absl::StatusOr<internal::v1::ReplicateResponse> StandbyReceiver::Take(const internal::v1::ReplicateRequest& part) {
  {
    absl::MutexLock lock(&mutex_);
    if (stage_ != Stage::kFollowing) {
      return WithReason(v1::ERROR_REASON_MEMBER_LOST,
                        absl::FailedPreconditionError(
                            absl::StrCat("replicate: standby ", rank_,
                                         stage_ == Stage::kServer ? " has taken over" : " is not following a server")));
    }
    taking_ = true;
  }
  const absl::Status taken = ApplyMessage(part);
  std::function<void(absl::Status)> taken_over;
  {
    absl::MutexLock lock(&mutex_);
    taking_ = false;
    // Set after the change, because the time to apply it does not count toward the server's timeout.
    last_message_ = absl::Now();
    whole_ = loader_.whole();
    taken_over = std::exchange(taken_over_, nullptr);
  }
  // A refused change had no effect and was not acknowledged.
  if (taken_over) taken_over(absl::OkStatus());
  if (!taken.ok()) return taken;
  response_.set_taken(response_.taken() + CountPart(part));
  response_.set_position(loader_.position());
  response_.set_whole(loader_.whole());
  return response_;
}

absl::Status StandbyReceiver::ApplyMessage(const internal::v1::ReplicateRequest& part) {
  if (part.data().size() > kMaxRecordBytes - parts_.size()) {
    return absl::DataLossError(absl::StrCat("replicate: a record has more than ", kMaxRecordBytes, " bytes"));
  }
  if (part.kind() == internal::v1::ReplicateRequest::KIND_UNSPECIFIED) {
    parts_ += part.data();
    return absl::OkStatus();
  }
  if (parts_.empty()) return Annotate(loader_.Take(part.kind(), part.position(), part.data()), "replicate");
  parts_ += part.data();
  const std::string record = std::exchange(parts_, "");
  return Annotate(loader_.Take(part.kind(), part.position(), record), "replicate");
}

void StandbyReceiver::Close() {
  {
    absl::MutexLock lock(&mutex_);
    if (stage_ != Stage::kFollowing) return;
    stage_ = Stage::kLost;
  }
  on_lost_();
}

bool StandbyReceiver::lost() const {
  absl::MutexLock lock(&mutex_);
  const bool timed_out = whole_ && !taking_ && absl::Now() - last_message_ > kServerTimeout;
  return stage_ == Stage::kLost || (stage_ == Stage::kFollowing && timed_out);
}

bool StandbyReceiver::awaits_server() const {
  absl::MutexLock lock(&mutex_);
  return stage_ == Stage::kIdle && standby_ != 0;
}

bool StandbyReceiver::following() const {
  absl::MutexLock lock(&mutex_);
  return stage_ == Stage::kFollowing && whole_;
}

void StandbyReceiver::TakeOver(std::function<void(absl::Status)> done) {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    stage_ = whole_ ? Stage::kServer : stage_;
    if (whole_ && taking_) {
      taken_over_ = std::move(done);
      return;
    }
    if (!whole_) {
      status =
          absl::InternalError(absl::StrCat("standby ", rank_, " cannot take over: it does not have the whole shard"));
    }
  }
  done(status);
}

}  // namespace ballast
