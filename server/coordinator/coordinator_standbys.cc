// SPDX-License-Identifier: Apache-2.0
// Of a Coordinator: servers that come in pairs, and where shards are.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "server/coordinator/coordinator.h"

namespace ballast {
namespace {

// A server that has not been heard of for so many heartbeats is gone where its standby says so, too: two have missed
// it.
constexpr int kBeatsMissed = 4;

// Calls that wait for a newer shard map: of one connection, whose client needs one, and of all.
constexpr uint32_t kMapWaitsOfAPeer = 8;
constexpr size_t kMapWaits = 8192;

// A server that is silent may be alive, and has what nobody else has.
bool IsThere(const Membership::Member& member) {
  return member.state == Membership::State::kJoined ||
         (member.state == Membership::State::kLost && member.id.role == MemberRole::kServer);
}

}  // namespace

absl::Status Coordinator::CheckDurabilityLocked(const v1::Job& job) const {
  const bool replica = job.durability().mode() == v1::Durability::STANDBY;
  if (replica == options_.with_standby) return absl::OkStatus();
  return WithReason(v1::ERROR_REASON_NO_STORAGE,
                    absl::FailedPreconditionError(absl::StrCat(
                        "job \"", job.name(), "\" has durability ", v1::Durability::Mode_Name(job.durability().mode()),
                        replica ? ", which wants servers in pairs: start each with --with_standby, two for each rank"
                                : ", but the servers were started with --with_standby, which is for STANDBY alone")),
                    {{"job", job.name()}});
}

absl::StatusOr<Coordinator::Admission> Coordinator::CheckServerLocked(const Newcomer& newcomer,
                                                                      std::optional<uint32_t> rank) const {
  if (newcomer.with_standby != options_.with_standby) {
    return WithReason(v1::ERROR_REASON_SERVERS_DIFFER,
                      absl::FailedPreconditionError(absl::StrCat(
                          newcomer.description, newcomer.with_standby ? " was started with" : " was started without",
                          " --with_standby, server 0 ", newcomer.with_standby ? "without" : "with",
                          " it: want the same for all servers")));
  }
  Admission admission{MemberRole::kServer, rank.value_or(0), {}, false, std::nullopt};
  bool takeover = false;
  if (options_.with_standby) {
    if (!rank.has_value() || *rank >= options_.servers) {
      return absl::InvalidArgumentError(absl::StrCat("join: a server of a pair wants a rank below ", options_.servers));
    }
    for (MemberRole role : {MemberRole::kServer, MemberRole::kStandby}) {
      const std::optional<Membership::Member> before = membership_.Find(role, *rank);
      const bool there = before.has_value() && IsThere(*before);
      if (there && before->address == newcomer.address && before->description != newcomer.description) {
        admission.replaced.push_back(*before);
        takeover = takeover || (role == MemberRole::kServer && ReadyStandbyLocked(*rank).has_value());
      } else if (there && role == MemberRole::kServer && before->address != newcomer.address) {
        admission.role = MemberRole::kStandby;
      }
    }
    // The standby's place is free once it has become the server.
    if (takeover) admission.role = MemberRole::kStandby;
  }
  if (takeover) return admission;
  const absl::StatusOr<uint32_t> free =
      membership_.CheckJoin(admission.role, rank, newcomer.address, newcomer.description);
  if (!free.ok()) return free.status();
  admission.rank = *free;
  return admission;
}

absl::Status Coordinator::OnReplicationReportLocked(const Membership::Id& id, const ReplicationReport& news,
                                                    HeartbeatReply& reply) {
  if (!options_.with_standby || id.role == MemberRole::kWorker) return absl::OkStatus();
  if (id.rank >= options_.servers) return absl::InvalidArgumentError(absl::StrCat("got rank ", id.rank));
  if (id.role == MemberRole::kServer) {
    if (absl::Status status = membership_.Heartbeat(id); !status.ok()) return status;
    if (standbys_.Report(id.rank, news.standby)) {
      ChangedLocked();
      const bool in_step = standbys_.ready(id.rank) > 0;
      if (state_ == v1::JOB_STATE_RUNNING) {
        const std::string& why = news.standby.reason();
        NoteLocked(in_step ? absl::StrCat("standby ", id.rank, " is in step")
                           : absl::StrCat("standby ", id.rank, " does not follow any more", why.empty() ? "" : " (",
                                          why, why.empty() ? "" : ")", "; server ", id.rank, " goes on without it"));
      }
    }
    const std::optional<Membership::Member> standby = membership_.Find(MemberRole::kStandby, id.rank);
    if (standby.has_value() && standbys_.follower(id.rank) == standby->id.incarnation) reply.standby = *standby;
    return absl::OkStatus();
  }
  std::optional<uint64_t> promoted = standbys_.PromotedTo(id.rank, id.incarnation);
  if (!promoted.has_value()) {
    if (standbys_.follower(id.rank) != id.incarnation) {
      return WithReason(
          v1::ERROR_REASON_MEMBER_LOST,
          absl::FailedPreconditionError(absl::StrCat("standby ", id.rank, ", incarnation ", id.incarnation,
                                                     ", does not follow its server any more")),
          {{"role", "standby"}, {"rank", absl::StrCat(id.rank)}});
    }
    // Checked before anything that the standby says is believed.
    if (absl::Status status = membership_.Heartbeat(id); !status.ok()) return status;
    if (news.server_lost) LoseSilentServerLocked(id.rank);
    promoted = standbys_.PromotedTo(id.rank, id.incarnation);
  }
  if (promoted.has_value()) reply.promoted = Membership::Id{MemberRole::kServer, id.rank, *promoted};
  return absl::OkStatus();
}

void Coordinator::LoseSilentServerLocked(uint32_t rank) {
  const std::optional<Membership::Member> server = membership_.Find(MemberRole::kServer, rank);
  if (!server.has_value() || server->state != Membership::State::kJoined) return;
  const absl::Duration silent = clock_->Now() - server->last_heard;
  if (silent <= options_.member_ttl / 15 * kBeatsMissed) return;
  const std::string how = absl::StrCat("left its standby and was not heard of for ",
                                       absl::FormatDuration(absl::Trunc(silent, absl::Milliseconds(1))));
  membership_.Leave(server->id, Membership::State::kLost, how).IgnoreError();
  TakeOverLocked(rank, absl::StrCat(ballast::Describe(*server), " ", how));
}

std::optional<Membership::Member> Coordinator::ReadyStandbyLocked(uint32_t rank) const {
  const uint64_t ready = standbys_.ready(rank);
  std::optional<Membership::Member> standby = membership_.Find(MemberRole::kStandby, rank);
  const bool may = ready > 0 && standby.has_value() && standby->id.incarnation == ready &&
                   standby->state == Membership::State::kJoined;
  return may ? standby : std::nullopt;
}

bool Coordinator::TakeOverLocked(uint32_t rank, const std::string& what) {
  const std::optional<Membership::Member> standby = ReadyStandbyLocked(rank);
  if (!standby.has_value()) return false;
  const Membership::Id server = membership_.Promote(rank);
  standbys_.Promote(rank, server.incarnation);
  if (!map_.shards().empty()) map_.Move(rank, standby->address, standby->control_address);
  ++servers_lost_;
  NoteLocked(absl::StrCat(what, "; its standby (", standby->description, ") takes over at ", standby->address));
  return true;
}

void Coordinator::TakeOverSilentLocked() {
  if (!options_.with_standby) return;
  for (uint32_t rank = 0; rank < options_.servers; ++rank) {
    const std::optional<Membership::Member> server = membership_.Find(MemberRole::kServer, rank);
    if (!server.has_value() || server->state == Membership::State::kJoined) continue;
    if (!membership_.IsFresh(MemberRole::kStandby, rank)) continue;
    TakeOverLocked(rank, absl::StrCat(ballast::Describe(*server), " ", server->reason));
  }
}

void Coordinator::LoseServerLocked(uint32_t rank, const std::string& what) {
  if (TakeOverLocked(rank, what)) return;
  if (map_.shards().empty() && state_ == v1::JOB_STATE_GATHERING) return;
  FailLocked(absl::StrCat(what, ", and what it held is gone: no standby was in step with it"),
             Membership::Id{MemberRole::kServer, rank, membership_.Find(MemberRole::kServer, rank)->id.incarnation});
}

ShardMap Coordinator::ShardMapLocked() const {
  if (!map_.shards().empty()) return map_;
  return ShardMap(membership_.ServerAddresses(), membership_.ServerControlAddresses());
}

ShardMap Coordinator::shard_map() const {
  absl::MutexLock lock(&mutex_);
  return ShardMapLocked();
}

// One call of AwaitShardMap that waits; the coordinator's lock guards `ticket`.
struct Coordinator::MapWait {
  const uint64_t newer_than;
  const std::string peer;
  const MapDone done;
  WaitList::Ticket ticket = WaitList::kNoTicket;
};

WaitList::Ticket Coordinator::AwaitShardMap(uint64_t newer_than, absl::Duration wait, const std::string& peer,
                                            MapDone done) {
  absl::StatusOr<ShardMap> map;
  uint64_t change = 0;
  {
    absl::MutexLock lock(&mutex_);
    change = changes_;
    if (newer_than == 0 || map_.epoch() > newer_than) {
      map = ShardMapLocked();
    } else if (absl::Status room = CheckMapWaitLocked(peer); !room.ok()) {
      map = room;
    } else {
      // Shared by the functions that the wait room keeps, and frees together.
      const auto call = std::make_shared<MapWait>(MapWait{newer_than, peer, std::move(done)});
      call->ticket = waits_.Add(
          clock_->Now() + wait, [](WaitList::Ticket) { return true; },
          [] { return std::string("the shard map to change"); },
          [this, call](const absl::Status& status) { EndMapWait(*call, status); });
      map_waits_.emplace(newer_than, call->ticket);
      ++map_waits_of_peer_[peer];
      return call->ticket;
    }
  }
  if (map.ok()) {
    AnswerMap(change, *std::move(map), std::move(done));
  } else {
    done(map.status());
  }
  return WaitList::kNoTicket;
}

void Coordinator::AnswerMap(uint64_t change, ShardMap map, MapDone done) {
  AwaitSaved(change, [map = std::move(map), done = std::move(done)](const absl::Status& saved) {
    if (!saved.ok()) return done(saved);
    done(map);
  });
}

absl::Status Coordinator::CheckMapWaitLocked(const std::string& peer) const {
  const auto of_peer = map_waits_of_peer_.find(peer);
  const uint32_t waiting = of_peer == map_waits_of_peer_.end() ? 0 : of_peer->second;
  if (waiting >= kMapWaitsOfAPeer) {
    return WithReason(v1::ERROR_REASON_SERVER_BUSY, absl::ResourceExhaustedError(absl::StrCat(
                                                        "shard map: got a call of ", peer, " while ", waiting,
                                                        " of its calls wait, want at most ", kMapWaitsOfAPeer)));
  }
  if (map_waits_.size() < kMapWaits) return absl::OkStatus();
  return WithReason(v1::ERROR_REASON_SERVER_BUSY,
                    absl::ResourceExhaustedError(absl::StrCat("shard map: got a call while ", map_waits_.size(),
                                                              " calls wait, want at most ", kMapWaits)));
}

void Coordinator::EndMapWait(const MapWait& call, const absl::Status& status) {
  const bool cancelled = !status.ok() && !absl::IsDeadlineExceeded(status);
  std::optional<ShardMap> map;
  uint64_t change = 0;
  {
    absl::MutexLock lock(&mutex_);
    map_waits_.erase({call.newer_than, call.ticket});
    const auto of_peer = map_waits_of_peer_.find(call.peer);
    if (--of_peer->second == 0) map_waits_of_peer_.erase(of_peer);
    if (!cancelled) map = ShardMapLocked();
    change = changes_;
  }
  if (cancelled) return call.done(status);
  AnswerMap(change, *std::move(map), call.done);
}

}  // namespace ballast
