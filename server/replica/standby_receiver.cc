// SPDX-License-Identifier: Apache-2.0
#include "server/replica/standby_receiver.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/error_reason.h"
#include "common/storage/framed_message.h"
#include "common/storage/record_log.h"
#include "server/durability/shard_replay.h"

namespace ballast {
namespace {

// Of a server that says something every quarter of a second.
constexpr absl::Duration kSilence = absl::Milliseconds(1200);

}  // namespace

void StandbyReceiver::Begin(uint64_t standby) {
  absl::MutexLock lock(&mutex_);
  standby_ = standby;
}

absl::Status StandbyReceiver::Open(const internal::v1::ReplicateHello& hello) {
  absl::MutexLock lock(&mutex_);
  if (hello.shard() != rank_) {
    return WithReason(v1::ERROR_REASON_NOT_OWNER, absl::FailedPreconditionError(absl::StrCat(
                                                      "replicate: got shard ", hello.shard(), ", want shard ", rank_)));
  }
  if (standby_ == 0 || hello.standby() != standby_) {
    return WithReason(v1::ERROR_REASON_MEMBER_LOST,
                      absl::FailedPreconditionError(
                          absl::StrCat("replicate: standby ", rank_, ": got incarnation ", hello.standby(), ", want ",
                                       standby_ == 0 ? "none: this server is no standby" : absl::StrCat(standby_))));
  }
  if (stage_ != Stage::kIdle) {
    return WithReason(v1::ERROR_REASON_MEMBER_LOST,
                      absl::FailedPreconditionError(
                          absl::StrCat("replicate: standby ", rank_, " was fed before; it wants to be started anew")));
  }
  stage_ = Stage::kLoading;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<uint64_t>> StandbyReceiver::Take(const internal::v1::ReplicateRequest& part) {
  absl::MutexLock lock(&mutex_);
  if (stage_ != Stage::kLoading && stage_ != Stage::kFollowing) {
    return WithReason(
        v1::ERROR_REASON_MEMBER_LOST,
        absl::FailedPreconditionError(absl::StrCat(
            "replicate: standby ", rank_, stage_ == Stage::kServer ? " has taken over" : " does not follow any more")));
  }
  heard_ = absl::Now();
  if (part.data().size() > kMaxRecordBytes - parts_.size()) {
    return absl::DataLossError(absl::StrCat("replicate: a record has more than ", kMaxRecordBytes, " bytes"));
  }
  if (part.kind() == internal::v1::ReplicateRequest::KIND_UNSPECIFIED) {
    parts_ += part.data();
    return std::nullopt;
  }
  if (parts_.empty()) return TakeRecordLocked(part.kind(), part.position(), part.data());
  parts_ += part.data();
  const std::string record = std::exchange(parts_, "");
  return TakeRecordLocked(part.kind(), part.position(), record);
}

absl::StatusOr<std::optional<uint64_t>> StandbyReceiver::TakeRecordLocked(internal::v1::ReplicateRequest::Kind kind,
                                                                          uint64_t position, absl::string_view record) {
  const bool snapshot = kind == internal::v1::ReplicateRequest::KIND_SNAPSHOT;
  if (snapshot != (stage_ == Stage::kLoading))
    return absl::DataLossError("replicate: a snapshot comes first, and once");
  if (snapshot) {
    const absl::StatusOr<bool> whole = snapshot_.Add(record);
    if (!whole.ok()) return whole.status();
    if (!*whole) return std::nullopt;
    if (absl::Status status = shard_->Restore(snapshot_.TakeCapture()); !status.ok()) return status;
    stage_ = Stage::kFollowing;
    complete_ = true;
    position_ = position;
    return position_;
  }
  if (position != position_ + 1) {
    return absl::DataLossError(absl::StrCat("replicate: got change ", position, ", want ", position_ + 1));
  }
  internal::v1::ShardRecord change;
  const absl::StatusOr<absl::string_view> behind = ParseFramed(record, change);
  if (!behind.ok()) return behind.status();
  const absl::StatusOr<bool> applied = ApplyChange(*shard_, change, *behind);
  if (!applied.ok()) {
    return absl::DataLossError(absl::StrCat("replicate: change ", position, ": ", applied.status().message()));
  }
  // The server made it, so that this shard is not the same any more.
  if (!*applied) {
    return absl::DataLossError(
        absl::StrCat("replicate: change ", position, " is of an incarnation that has restarted"));
  }
  position_ = position;
  return position_;
}

void StandbyReceiver::Close() {
  {
    absl::MutexLock lock(&mutex_);
    if (stage_ != Stage::kLoading && stage_ != Stage::kFollowing) return;
    stage_ = Stage::kLost;
  }
  on_lost_();
}

bool StandbyReceiver::lost() const {
  absl::MutexLock lock(&mutex_);
  const bool silent = absl::Now() - heard_ > kSilence;
  return stage_ == Stage::kLost || (stage_ == Stage::kFollowing && silent);
}

absl::Status StandbyReceiver::TakeOver() {
  absl::MutexLock lock(&mutex_);
  if (!complete_) {
    return WithReason(v1::ERROR_REASON_MEMBER_LOST, absl::FailedPreconditionError(absl::StrCat(
                                                        "standby ", rank_, " is to take over and has no whole shard")));
  }
  stage_ = Stage::kServer;
  return absl::OkStatus();
}

}  // namespace ballast
