// SPDX-License-Identifier: Apache-2.0
// The state of a Coordinator that outlives its process.
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/coordinator/coordinator.h"

namespace ballast {
namespace {

internal::v1::MemberRecord ToRecord(const Membership::Member& member) {
  internal::v1::MemberRecord record;
  *record.mutable_member() = ToProto(member.id);
  record.set_address(member.address);
  record.set_control_address(member.control_address);
  record.set_description(member.description);
  record.set_process(member.process);
  record.set_reason(member.reason);
  switch (member.state) {
    case Membership::State::kJoined:
      record.set_state(internal::v1::MemberRecord::STATE_JOINED);
      break;
    case Membership::State::kLeft:
      record.set_state(internal::v1::MemberRecord::STATE_LEFT);
      break;
    case Membership::State::kLost:
      record.set_state(internal::v1::MemberRecord::STATE_LOST);
      break;
    case Membership::State::kFailed:
      record.set_state(internal::v1::MemberRecord::STATE_FAILED);
      break;
  }
  return record;
}

absl::StatusOr<Membership::State> StateOf(const internal::v1::MemberRecord& record) {
  switch (record.state()) {
    case internal::v1::MemberRecord::STATE_JOINED:
      return Membership::State::kJoined;
    case internal::v1::MemberRecord::STATE_LEFT:
      return Membership::State::kLeft;
    case internal::v1::MemberRecord::STATE_LOST:
      return Membership::State::kLost;
    case internal::v1::MemberRecord::STATE_FAILED:
      return Membership::State::kFailed;
    default:
      return absl::InvalidArgumentError(absl::StrCat("saved member: got state ", record.state(), ", want 1 to 4"));
  }
}

absl::StatusOr<Membership::Member> FromRecord(const internal::v1::MemberRecord& record,
                                              const Coordinator::Options& options) {
  const absl::StatusOr<Membership::Id> id = FromProto(record.member());
  if (!id.ok()) return id.status();
  const uint32_t count = id->role == MemberRole::kWorker ? options.workers : options.servers;
  if (id->rank >= count || id->incarnation == 0) {
    return absl::InvalidArgumentError(absl::StrCat("saved member: got ", RoleName(id->role), " ", id->rank,
                                                   ", incarnation ", id->incarnation, ", want a rank below ", count));
  }
  absl::StatusOr<Membership::State> state = StateOf(record);
  if (!state.ok()) return state.status();
  Membership::Member member;
  member.id = *id;
  member.address = record.address();
  member.control_address = record.control_address();
  member.description = record.description();
  member.process = record.process();
  member.state = *state;
  member.reason = record.reason();
  return member;
}

}  // namespace

internal::v1::CoordinatorState Coordinator::ExportLocked() const {
  internal::v1::CoordinatorState state;
  state.set_state(state_);
  state.set_reason(reason_);
  state.set_job_name(job_name_);
  if (state_ == v1::JOB_STATE_FAILED) *state.mutable_failure() = failure_;
  if (job_.has_value()) *state.mutable_job() = *job_;
  state.set_train_examples(train_examples_);
  state.set_resumed_from(resumed_from_);
  *state.mutable_map() = map_.ToProto();
  for (const Membership::Member& member : membership_.members()) *state.add_members() = ToRecord(member);
  if (leases_.has_value()) *state.mutable_leases() = leases_->Export();
  *state.mutable_progress() = board_.Export();
  state.set_seconds(absl::ToDoubleSeconds(RunningForLocked()));
  state.set_workers_lost(workers_lost_);
  state.set_servers_lost(servers_lost_);
  state.mutable_notices()->Add(notices_.begin(), notices_.end());
  state.set_notices_made(notices_made_);
  if (options_.with_standby) {
    for (internal::v1::StandbyState& standby : standbys_.Export()) *state.add_standbys() = std::move(standby);
  }
  return state;
}

internal::v1::CoordinatorState Coordinator::Export() const {
  absl::MutexLock lock(&mutex_);
  return ExportLocked();
}

absl::Status Coordinator::Restore(const internal::v1::CoordinatorState& state) {
  std::vector<Membership::Member> members;
  for (const internal::v1::MemberRecord& record : state.members()) {
    absl::StatusOr<Membership::Member> member = FromRecord(record, options_);
    if (!member.ok()) return member.status();
    members.push_back(*std::move(member));
  }
  absl::StatusOr<ShardMap> map = ShardMap();
  if (state.map().shards_size() > 0) map = ShardMap::FromProto(state.map());
  if (!map.ok()) return map.status();
  absl::MutexLock lock(&mutex_);
  job_name_ = state.job_name();
  if (state.has_job()) {
    job_ = state.job();
    job_name_ = job_->name();
    train_examples_ = state.train_examples();
    resumed_from_ = state.resumed_from();
    if (LeasesData(*job_, train_examples_)) {
      leases_.emplace(LeaseOptions(*job_, train_examples_));
      if (absl::Status status = leases_->Restore(state.leases()); !status.ok()) return status;
    }
  }
  if (options_.with_standby) {
    absl::Status status = standbys_.Restore({state.standbys().begin(), state.standbys().end()});
    if (!status.ok()) return status;
  }
  membership_.Restore(std::move(members));
  map_ = *std::move(map);
  board_.Restore(state.progress());
  state_ = state.state();
  reason_ = state.reason();
  failure_ = state.failure();
  const absl::Time now = heard_ = clock_->Now();
  if (state_ != v1::JOB_STATE_GATHERING) running_since_ = now - absl::Seconds(state.seconds());
  if (state_ == v1::JOB_STATE_FINISHED || state_ == v1::JOB_STATE_FAILED) ended_ = now;
  workers_lost_ = state.workers_lost();
  servers_lost_ = state.servers_lost();
  notices_.assign(state.notices().begin(), state.notices().end());
  notices_made_ = notices_logged_ = state.notices_made();
  return absl::OkStatus();
}

}  // namespace ballast
