// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/job_control.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/job/job_config.h"
#include "common/status/error_reason.h"
#include "common/status/job_failure.h"
#include "common/tensors/tensor_spec.h"

namespace ballast {

JobControl::JobControl(const JobOptions& options, absl::Time now)
    : options_(options),
      members_(options.servers, options.workers, options.member_ttl, options.with_standby),
      servers_(options_, &members_, &status_),
      workers_(options_, &members_, &status_),
      checkpoints_(options_, &members_, &status_, &servers_, &workers_),
      caused_waits_(options.workers),
      heard_(now) {
  if (!options_.resume.has_value()) return;
  members_.BeginAbove({options_.resume->incarnations().begin(), options_.resume->incarnations().end()});
}

absl::StatusOr<uint32_t> JobControl::LateRank(const Newcomer& newcomer) const {
  const bool finished = status_.finished();
  const bool server = newcomer.role == MemberRole::kServer && newcomer.rank.has_value();
  if (finished && server && OutlivesAServer(workers_.durability())) return *newcomer.rank;
  if (finished && newcomer.role == MemberRole::kWorker) {
    for (const auto& [key, member] : members_.members()) {
      const bool asked = !newcomer.rank.has_value() || *newcomer.rank == member.id.rank;
      // A live worker still gets ALREADY_EXISTS, after which the caller may retry.
      if (member.id.role == MemberRole::kWorker && asked && member.state != Membership::State::kLeft) {
        return member.id.rank;
      }
    }
  }
  const std::string ended = absl::StrCat("the job has ended (", finished ? "finished" : status_.reason(),
                                         "); restart the servers to train again");
  if (finished) return WithReason(v1::ERROR_REASON_JOB_ENDED, absl::FailedPreconditionError(ended));
  return WithJobFailure(absl::FailedPreconditionError(ended), status_.failure());
}

absl::StatusOr<Membership::Id> JobControl::Join(Newcomer newcomer, absl::Time now) {
  Update(now);
  newcomer.description = MemberText(newcomer.description);
  std::optional<uint32_t> rank = newcomer.rank;
  if (status_.finished() || status_.failed()) {
    const absl::StatusOr<uint32_t> late = LateRank(newcomer);
    if (!late.ok()) return late.status();
    rank = *late;
  }
  const bool worker = newcomer.role != MemberRole::kServer;
  const absl::StatusOr<Admission> admission =
      worker ? workers_.CheckJoin(newcomer, rank) : servers_.CheckJoin(newcomer, rank);
  if (!admission.ok()) return admission.status();
  for (const Membership::Member& before : admission->replaced) {
    const std::string what =
        absl::StrCat(ballast::Describe(before), " was replaced at its address by ", newcomer.description);
    absl::Status left = members_.Leave(before.id, Membership::State::kFailed, "was replaced at its address", now);
    if (!left.ok()) return left;
    if (before.id.role == MemberRole::kServer) {
      servers_.LoseServer(before.id.rank, what, now);
    } else {
      Lose(before.id, what, now);
    }
  }
  if (worker) workers_.Adopt(newcomer);
  const absl::StatusOr<Membership::Id> id =
      members_.Join(admission->role, admission->rank, std::move(newcomer.address), std::move(newcomer.description), now,
                    newcomer.process, newcomer.control_address);
  if (!id.ok()) return id;
  status_.Change();
  if (!worker) servers_.OnJoin(*id, std::move(newcomer.control_address));
  if (id->incarnation > 1) {
    if (worker) workers_.OnReturn(id->rank);
    if (status_.running()) status_.Note(absl::StrCat(RoleName(id->role), " ", id->rank, " has rejoined"));
  }
  Update(now);
  return id;
}

void JobControl::Lose(const Membership::Id& id, const std::string& what, absl::Time now) {
  status_.Change();
  if (id.role == MemberRole::kWorker) workers_.Lose(id.rank);
  if (id.role == MemberRole::kStandby) servers_.LoseStandby(id);
  if (!status_.running()) return;
  if (id.role == MemberRole::kStandby) {
    status_.Note(absl::StrCat(what, "; server ", id.rank, " continues without a standby until another joins"));
    return;
  }
  const std::string wait = absl::FormatDuration(ReturnTime(workers_.durability()));
  if (id.role == MemberRole::kWorker) {
    status_.Note(members_.AnyJoined(MemberRole::kWorker)
                     ? absl::StrCat(what, "; the others continue")
                     : absl::StrCat(what, "; no worker is left, and the job fails unless one returns within ", wait));
    return;
  }
  if (OutlivesAServer(workers_.durability())) {
    status_.CountLostServer();
    status_.Note(absl::StrCat(what, "; the others wait up to ", wait, " for it to return"));
    return;
  }
  status_.Fail(absl::StrCat(what, ", and its shard is lost: with durability wal, wal_sync or standby the job would ",
                            "have survived"),
               members_.Find(id.role, id.rank), now);
}

void JobControl::CheckReturns(absl::Time now) {
  const absl::Duration return_time = ReturnTime(workers_.durability());
  uint32_t workers_left = 0;
  for (const auto& [key, member] : members_.members()) {
    const bool left = member.state == Membership::State::kLeft;
    workers_left += member.id.role == MemberRole::kWorker && left ? 1 : 0;
    const bool waited_for = member.id.role == MemberRole::kServer && member.state != Membership::State::kJoined &&
                            member.gone_since + return_time <= now;
    if (!waited_for) continue;
    return status_.Fail(absl::StrCat(ballast::Describe(member), " ", member.reason, " and did not return within ",
                                     absl::FormatDuration(return_time)),
                        member, now);
  }
  if (members_.AnyJoined(MemberRole::kWorker)) {
    deserted_since_ = absl::InfiniteFuture();
    return;
  }
  deserted_since_ = std::min(deserted_since_, now);
  const bool overdue = deserted_since_ + return_time <= now;
  // Without leases only the workers know when the job is done, and those that left did their part. A lost one may
  // still return.
  const bool done = workers_left == options_.workers || (workers_left > 0 && overdue);
  if (!workers_.leases_data() && done) return status_.Finish(now);
  if (!overdue) return;
  const std::string last = status_.last_notice();
  status_.Fail(absl::StrCat("no worker was left, and none returned within ", absl::FormatDuration(return_time),
                            last.empty() ? "" : "; the last event: ", last),
               std::nullopt, now);
}

void JobControl::Hear(const Membership::Id& id, absl::Time now) {
  // Membership::Heartbeat would bring back a lost server.
  if (members_.CheckJoined(id).ok()) members_.Heartbeat(id, now).IgnoreError();
}

void JobControl::EndResponse(const Membership::Id& id, absl::Time now) {
  unanswered_.erase(unanswered_.find(id));
  Hear(id, now);
}

void JobControl::DiscountSilence(absl::Time now) {
  for (const Membership::Id& id : unanswered_) Hear(id, now);
  const absl::Duration silence = now - std::exchange(heard_, now);
  if (silence <= options_.longest_silence) return;
  members_.Discount(silence, now);
  if (deserted_since_ != absl::InfiniteFuture()) deserted_since_ = std::min(deserted_since_ + silence, now);
}

void JobControl::Update(absl::Time now) {
  DiscountSilence(now);
  for (const Membership::Member& member : members_.Expire(now)) {
    if (member.id.role == MemberRole::kWorker && status_.running()) status_.CountLostWorker();
    Lose(member.id, absl::StrCat(ballast::Describe(member), " ", member.reason), now);
  }
  servers_.TakeOverSilent(now);
  if (status_.gathering() && members_.Missing().empty()) {
    status_.Run(workers_.resumed() ? absl::Seconds(options_.resume->seconds()) : absl::ZeroDuration(), now);
  }
  if (status_.running() && workers_.all_done()) status_.Finish(now);
  if (status_.running()) CheckReturns(now);
  checkpoints_.Update(now);
}

absl::Status JobControl::ReportWaits(const Membership::Id& server,
                                     const google::protobuf::RepeatedPtrField<v1::CausedWait>& waits) {
  if (absl::Status status = members_.CheckJoined(server); !status.ok()) return status;
  return caused_waits_.Report(server.rank, server.incarnation, waits);
}

absl::StatusOr<JobControl::HeartbeatReply> JobControl::Heartbeat(const Membership::Id& id,
                                                                 const v1::CheckpointPart& part,
                                                                 const ReplicationReport& report, absl::Time now) {
  DiscountSilence(now);
  absl::StatusOr<ServerControl::Peer> peer = servers_.OnReport(id, report, now);
  if (!peer.ok()) return peer.status();
  if (absl::Status status = members_.Heartbeat(peer->promoted.value_or(id), now); !status.ok()) return status;
  Update(now);
  HeartbeatReply reply;
  reply.state = status_.state();
  reply.reason = Reason();
  reply.failure = status_.failure();
  if (id.role == MemberRole::kServer) {
    const CheckpointControl::Order order = checkpoints_.OnHeartbeat(id.rank, part, now);
    reply.heartbeat_now = order.heartbeat_now;
    reply.capture_checkpoint_id = order.capture_checkpoint_id;
  }
  reply.standby = std::move(peer->standby);
  reply.promoted = peer->promoted;
  reply.change = status_.told();
  for (const auto& [key, member] : members_.members()) {
    const bool here = member.state == Membership::State::kJoined;
    if (member.id.role == MemberRole::kWorker && !here) reply.absent.push_back(member.id);
  }
  return reply;
}

absl::Status JobControl::Leave(const Membership::Id& id, std::string failure, bool worker_local, absl::Time now) {
  failure = MemberText(failure);
  const bool was_here = members_.Heartbeat(id, now).ok();
  const bool pair = options_.with_standby && id.role != MemberRole::kWorker;
  // Without leases only the worker knows when it is done.
  const auto done = [&] {
    return status_.finished() || workers_.all_done() ||
           (!workers_.leases_data() && id.role == MemberRole::kWorker && failure.empty());
  };
  // Its successor may come when the job has finished, and still has to do its part: that of rank 0 saves the results.
  const bool early = id.role == MemberRole::kWorker && failure.empty() && !done();
  const auto state = early || (worker_local && !pair && !failure.empty()) ? Membership::State::kLost
                     : failure.empty()                                    ? Membership::State::kLeft
                                                                          : Membership::State::kFailed;
  const std::string reason = early ? "left before the job was done" : failure.empty() ? "left" : failure;
  if (absl::Status status = members_.Leave(id, state, reason, now); !status.ok()) return status;
  status_.Change();
  const std::string who = absl::StrCat(RoleName(id.role), " ", id.rank);
  if (was_here && !failure.empty() && !worker_local && !pair) {
    status_.Fail(absl::StrCat(who, " failed: ", failure), members_.Find(id.role, id.rank), now);
  }
  const std::string how = !failure.empty() ? absl::StrCat(" was lost: ", failure)
                          : done()         ? " left"
                                           : " left before the job was done";
  if (was_here && pair && id.role == MemberRole::kServer) {
    servers_.LoseServer(id.rank, absl::StrCat(who, how), now);
  } else if (was_here && !done()) {
    if (worker_local && id.role == MemberRole::kWorker && status_.running()) status_.CountLostWorker();
    Lose(id, absl::StrCat(who, how), now);
  }
  Update(now);
  return absl::OkStatus();
}

absl::StatusOr<ShardMap> JobControl::PlaceTensors(absl::string_view job, absl::Span<const v1::TensorSpec> specs,
                                                  absl::Span<const v1::TableSpec> tables) {
  if (absl::Status status = ValidateJobName(job); !status.ok()) return status;
  if (std::string missing = members_.MissingServers(); !missing.empty()) {
    // A failed job's servers will not join any more.
    if (status_.failed()) return status_.Error();
    return WithReason(
        v1::ERROR_REASON_SERVERS_MISSING,
        absl::UnavailableError(absl::StrCat("tensors cannot be placed yet: ", missing, " has not joined")),
        {{"members", missing}});
  }
  if (absl::Status status = workers_.CheckPlacement(job); !status.ok()) return status;
  if (absl::Status status = servers_.Place(specs, tables); !status.ok()) return status;
  workers_.NameJob(job);
  status_.Release();
  return servers_.shard_map();
}

absl::Status JobControl::CompleteLease(const Membership::Id& id, uint64_t lease, uint64_t steps, uint64_t batches,
                                       absl::Time now) {
  absl::Status status = workers_.Complete(id, lease, steps, batches, now);
  if (status.ok()) Update(now);
  return status;
}

absl::Status JobControl::ReportProgress(const Membership::Id& id, const v1::WorkerProgress& progress,
                                        const v1::Evaluation* evaluation, absl::Time now) {
  absl::Status status = workers_.Report(id, progress, evaluation, now);
  // An evaluation may end the training.
  if (status.ok() && evaluation != nullptr) Update(now);
  return status;
}

v1::SaveCheckpointResponse JobControl::SaveCheckpoint(const v1::SaveCheckpointRequest& request, absl::Time now) {
  Update(now);
  return checkpoints_.Save(request);
}

JobControl::Actions JobControl::TakeActions() {
  Actions actions{status_.TakePublished(), status_.TakeNotices(), checkpoints_.TakeCommit(), 0};
  if (actions.commit.has_value()) actions.keep = CheckpointsKept(workers_.durability());
  return actions;
}

bool JobControl::Outlives() const { return options_.with_standby || OutlivesAServer(workers_.durability()); }

std::string JobControl::Reason() const {
  return status_.gathering() ? absl::StrCat("waiting for ", workers_.ExplainWait()) : status_.reason();
}

v1::JobProgress JobControl::Progress(absl::Time now) const {
  v1::JobProgress progress;
  status_.Fill(progress, now);
  progress.set_reason(Reason());
  workers_.Fill(progress);
  caused_waits_.Fill(progress);
  checkpoints_.Fill(progress);
  return progress;
}

v1::GetProgressResponse JobControl::Describe(absl::Time now) const {
  v1::GetProgressResponse response;
  *response.mutable_progress() = Progress(now);
  response.set_servers(options_.servers);
  response.set_workers(options_.workers);
  for (const auto& [key, member] : members_.members()) {
    v1::GetProgressResponse::MemberStatus* status = response.add_members();
    *status->mutable_member() = ToProto(member.id);
    status->set_address(member.address);
    status->set_description(member.description);
    status->set_process(member.process);
    status->set_state(std::string(StateName(member.state)));
    status->set_seconds_since_heartbeat(absl::ToDoubleSeconds(now - member.last_heard));
    if (member.id.role == MemberRole::kWorker) status->set_step(workers_.progress().StepOf(member.id.rank));
    status->set_reason(member.reason);
    if (member.id.role != MemberRole::kStandby) continue;
    const StandbyTable& standbys = servers_.standbys();
    status->set_in_step(member.id.incarnation == standbys.ready(member.id.rank));
    if (member.id.incarnation != standbys.follower(member.id.rank)) continue;
    *status->mutable_standby() = standbys.last_report(member.id.rank);
  }
  for (auto& pushes : workers_.progress().Pushes()) *response.add_pushes() = std::move(pushes);
  return response;
}

internal::v1::CoordinatorState JobControl::Export(absl::Time now) const {
  internal::v1::CoordinatorState state;
  *state.mutable_members() = members_.Export();
  status_.Fill(state, now);
  servers_.Export(state);
  workers_.Export(state);
  checkpoints_.Fill(state);
  return state;
}

absl::Status JobControl::Restore(const internal::v1::CoordinatorState& state, absl::Time now) {
  if (absl::Status status = members_.Restore(state.members(), now); !status.ok()) return status;
  if (absl::Status status = servers_.Restore(state); !status.ok()) return status;
  if (absl::Status status = workers_.Restore(state); !status.ok()) return status;
  status_.Restore(state, now);
  checkpoints_.Restore(state);
  heard_ = now;
  return absl::OkStatus();
}

}  // namespace ballast
