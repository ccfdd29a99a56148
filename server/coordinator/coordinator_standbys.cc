// SPDX-License-Identifier: Apache-2.0
// The standbys and the shard map of a Coordinator.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "server/coordinator/coordinator.h"

namespace ballast {
namespace {

// Heartbeats that a server must have missed to be lost once its standby has lost it, too.
constexpr int kMissedHeartbeats = 4;

// Limits on calls that wait for a newer shard map: per connection, whose client needs one, and in total.
constexpr uint32_t kMaxMapWaitsPerPeer = 8;
constexpr size_t kMaxMapWaits = 8192;

// A lost server may be alive, and it holds the only copy of its state.
bool IsThere(const Membership::Member& member) {
  return member.state == Membership::State::kJoined ||
         (member.state == Membership::State::kLost && member.id.role == MemberRole::kServer);
}

}  // namespace

absl::Status Coordinator::CheckDurabilityLocked(const v1::Job& job) const {
  const bool standby = job.durability().mode() == v1::Durability::STANDBY;
  if (standby == options_.with_standby) return absl::OkStatus();
  return WithReason(
      v1::ERROR_REASON_NO_STORAGE,
      absl::FailedPreconditionError(absl::StrCat(
          "job \"", job.name(), "\" has durability ", v1::Durability::Mode_Name(job.durability().mode()),
          standby ? ", which needs a standby for each server: start two servers per rank, each with --with_standby"
                  : ", but the servers were started with --with_standby, which needs durability STANDBY")),
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
      return absl::InvalidArgumentError(
          absl::StrCat("join: a server with --with_standby needs a rank below ", options_.servers));
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
    // The standby's rank is free once it has become the server.
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
  if (id.rank >= options_.servers)
    return absl::InvalidArgumentError(absl::StrCat("got rank ", id.rank, ", want below ", options_.servers));
  if (id.role == MemberRole::kServer) {
    if (absl::Status status = membership_.Heartbeat(id); !status.ok()) return status;
    if (standbys_.Report(id.rank, news.standby)) {
      ChangedLocked();
      const bool in_step = standbys_.ready(id.rank) > 0;
      if (state_ == v1::JOB_STATE_RUNNING) {
        const std::string& why = news.standby.reason();
        NoteLocked(in_step ? absl::StrCat("standby ", id.rank, " is in step")
                           : absl::StrCat("standby ", id.rank, " no longer follows", why.empty() ? "" : " (", why,
                                          why.empty() ? "" : ")", "; server ", id.rank, " continues without it"));
      }
    }
    const std::optional<Membership::Member> standby = membership_.Find(MemberRole::kStandby, id.rank);
    if (standby.has_value() && standbys_.follower(id.rank) == standby->id.incarnation) reply.standby = *standby;
    return absl::OkStatus();
  }
  std::optional<uint64_t> promoted = standbys_.PromotedTo(id.rank, id.incarnation);
  if (!promoted.has_value()) {
    if (standbys_.follower(id.rank) != id.incarnation) {
      return WithReason(v1::ERROR_REASON_MEMBER_LOST,
                        absl::FailedPreconditionError(absl::StrCat("standby ", id.rank, ", incarnation ",
                                                                   id.incarnation, ", no longer follows its server")),
                        {{"role", "standby"}, {"rank", absl::StrCat(id.rank)}});
    }
    // Only a live standby's report counts.
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
  if (silent <= options_.member_ttl / 15 * kMissedHeartbeats) return;
  const std::string how = absl::StrCat("lost contact with its standby and sent no heartbeat for ",
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
  FailLocked(absl::StrCat(what, ", and its shard is lost: no standby was in step with it"),
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

// A waiting call of AwaitShardMap; the coordinator's lock guards `ticket`.
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
      // Shared by the callbacks of the wait list, which frees them together.
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
  if (waiting >= kMaxMapWaitsPerPeer) {
    return WithReason(v1::ERROR_REASON_SERVER_BUSY, absl::ResourceExhaustedError(absl::StrCat(
                                                        "shard map: got a call from ", peer, " while ", waiting,
                                                        " of its calls wait, want at most ", kMaxMapWaitsPerPeer)));
  }
  if (map_waits_.size() < kMaxMapWaits) return absl::OkStatus();
  return WithReason(v1::ERROR_REASON_SERVER_BUSY,
                    absl::ResourceExhaustedError(absl::StrCat("shard map: got a call while ", map_waits_.size(),
                                                              " calls wait, want at most ", kMaxMapWaits)));
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
