// SPDX-License-Identifier: Apache-2.0
#include "server/replication/replication_state.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {

bool ReplicationState::fed() const {
  return stage_ == Stage::kCatchingUp || stage_ == Stage::kClosingUp || stage_ == Stage::kInStep ||
         stage_ == Stage::kMayTakeOver;
}

bool ReplicationState::IsCurrent(const v1::StandbyTarget& target) const {
  return standby_ == target.incarnation() && next_target_.incarnation() == 0;
}

ReplicationState::Actions ReplicationState::Drop() {
  const bool was_fed = fed();
  stage_ = Stage::kNone;
  return {.cancel = was_fed, .queue = Actions::Queue::kClear, .release = position_};
}

ReplicationState::Actions ReplicationState::SetTarget(const v1::StandbyTarget& target) {
  const uint64_t named = target.incarnation(), next = next_target_.incarnation();
  // A standby never follows twice: it joins again as a new incarnation.
  if (named > 0 ? named == standby_ || named == next : standby_ == 0 && next == 0) return {};
  next_target_ = target;
  if (target.incarnation() == 0) standby_ = 0;
  // The coordinator has already dropped the previous standby.
  return Drop();
}

v1::StandbyTarget ReplicationState::TakeTarget() {
  standby_ = next_target_.incarnation();
  reason_.clear();
  return std::exchange(next_target_, {});
}

ReplicationState::Actions ReplicationState::OnOpen(const v1::StandbyTarget& target) {
  return {.log = absl::StrCat("standby ", shard_, " at ", target.address(), ": sending it the shard's state")};
}

bool ReplicationState::BeginTransfer(const v1::StandbyTarget& target) {
  if (!IsCurrent(target)) return false;
  stage_ = Stage::kCatchingUp;
  return true;
}

ReplicationState::Actions ReplicationState::OnResponse(uint64_t position, bool whole, absl::Duration took) {
  if (!fed()) return {};
  acknowledged_ = position;
  if (stage_ == Stage::kCatchingUp && whole) {
    stage_ = Stage::kClosingUp;
    mark_ = position_;
  }
  Actions actions{.release = acknowledged_};
  if (stage_ == Stage::kClosingUp && acknowledged_ >= mark_) {
    stage_ = Stage::kInStep;
    actions.log = absl::StrCat("standby ", shard_, ": in step after ",
                               absl::FormatDuration(absl::Trunc(took, absl::Milliseconds(100))));
    actions.report_now = true;
  }
  return actions;
}

ReplicationState::Actions ReplicationState::OnStreamEnd(const v1::StandbyTarget& target, const absl::Status& end) {
  Actions actions{.queue = Actions::Queue::kClear, .report_now = true};
  // No change waits for a standby that was never reported in step.
  if (!MayTakeOver()) actions.release = position_;
  // A replaced standby is not lost: the coordinator has already dropped it.
  if (IsCurrent(target)) stage_ = MayTakeOver() ? Stage::kLostMayTakeOver : Stage::kLost;
  if (reason_.empty()) reason_ = end.ok() ? "the standby ended the stream" : std::string(end.message());
  actions.log = absl::StrCat("standby ", shard_, " at ", target.address(), ": stopped following: ", reason_);
  return actions;
}

ReplicationState::Actions ReplicationState::OnTime(absl::Duration silence) {
  if (!fed() || silence <= timeout_) return {};
  reason_ = absl::StrCat("timed out after ", absl::FormatDuration(absl::Trunc(silence, absl::Seconds(1))),
                         " waiting for it to process data");
  return {.cancel = true};
}

v1::StandbyReport ReplicationState::Report() {
  v1::StandbyReport report;
  if (stage_ == Stage::kNone) return report;
  report.set_incarnation(standby_);
  if (stage_ == Stage::kInStep) stage_ = Stage::kMayTakeOver;
  if (stage_ == Stage::kMayTakeOver) {
    report.set_stage(v1::StandbyReport::STAGE_IN_STEP);
  } else if (fed()) {
    report.set_stage(v1::StandbyReport::STAGE_CATCHING_UP);
  } else {
    report.set_stage(v1::StandbyReport::STAGE_LOST);
    report.set_reason(reason_);
  }
  return report;
}

ReplicationState::Actions ReplicationState::OnHeartbeat(const v1::StandbyReport& report) {
  const bool knows = report.stage() == v1::StandbyReport::STAGE_LOST && report.incarnation() == standby_;
  if (!knows || (stage_ != Stage::kLost && stage_ != Stage::kLostMayTakeOver)) return {};
  return Drop();
}

ReplicationState::Actions ReplicationState::Close(absl::Status reason) {
  if (closed_.ok()) closed_ = std::move(reason);
  return {.queue = Actions::Queue::kRelease, .release = position_, .status = closed_};
}

uint64_t ReplicationState::Append() {
  // The first change is the job's declaration. A standby starts to follow only after it is applied, because the gate
  // is held until then.
  has_job_ = true;
  return ++position_;
}

ReplicationState::Wait ReplicationState::WaitOf(uint64_t position) const {
  if (!closed_.ok()) return Wait::kNothing;
  if (stage_ == Stage::kCatchingUp) return Wait::kLink;
  const bool waits = stage_ == Stage::kClosingUp || stage_ == Stage::kInStep || MayTakeOver();
  return waits && position > acknowledged_ ? Wait::kAcknowledgment : Wait::kNothing;
}

}  // namespace ballast
