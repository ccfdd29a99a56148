// SPDX-License-Identifier: Apache-2.0
// Of a Coordinator: servers that come in pairs, and where shards are.
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/coordinator.h"

namespace ballast {
namespace {

// A server that has not been heard of for so many heartbeats is gone where its standby says so, too: two have missed
// it.
constexpr int kBeatsMissed = 4;

// A server that is silent may be alive, and has what nobody else has.
bool IsThere(const Membership::Member& member) {
  return member.state == Membership::State::kJoined ||
         (member.state == Membership::State::kLost && member.id.role == MemberRole::kServer);
}

}  // namespace

absl::Status Coordinator::CheckDurabilityLocked(const v1::Job& job) const {
  const bool replica = job.durability().mode() == v1::Durability::REPLICA;
  if (replica == options_.replicated) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("job \"", job.name(), "\" has durability ", v1::Durability::Mode_Name(job.durability().mode()),
                   replica ? ", which wants servers in pairs: start each with --replicated, two for each rank"
                           : ", but the servers were started with --replicated, which is for REPLICA alone"));
}

absl::Status Coordinator::PlaceInPairLocked(Newcomer& newcomer) {
  if (newcomer.replicated != options_.replicated) {
    return absl::FailedPreconditionError(absl::StrCat(
        newcomer.description, newcomer.replicated ? " was started with" : " was started without",
        " --replicated, server 0 ", newcomer.replicated ? "without" : "with", " it: want the same for all servers"));
  }
  if (!options_.replicated) return absl::OkStatus();
  if (!newcomer.rank.has_value() || *newcomer.rank >= options_.servers) {
    return absl::InvalidArgumentError(absl::StrCat("join: a server of a pair wants a rank below ", options_.servers));
  }
  const uint32_t rank = *newcomer.rank;
  for (MemberRole role : {MemberRole::kServer, MemberRole::kStandby}) {
    const std::optional<Membership::Member> before = membership_.Find(role, rank);
    const bool replaced = before.has_value() && IsThere(*before) && before->address == newcomer.address &&
                          before->description != newcomer.description;
    if (!replaced) continue;
    const std::string what =
        absl::StrCat(ballast::Describe(*before), " was replaced at its address by ", newcomer.description);
    absl::Status left = membership_.Leave(before->id, Membership::State::kFailed, "was replaced at its address");
    if (!left.ok()) return left;
    ++changes_;
    if (role == MemberRole::kServer) {
      LoseServerLocked(rank, what);
    } else {
      LoseLocked(before->id, what);
    }
  }
  if (state_ == v1::JOB_STATE_FAILED)
    return absl::FailedPreconditionError(absl::StrCat("the job has failed: ", reason_));
  const std::optional<Membership::Member> server = membership_.Find(MemberRole::kServer, rank);
  const bool taken = server.has_value() && IsThere(*server) && server->address != newcomer.address;
  if (taken) newcomer.role = MemberRole::kStandby;
  return absl::OkStatus();
}

absl::Status Coordinator::HearPairLocked(const Membership::Id& id, const PairNews& news, Verdict& verdict) {
  if (!options_.replicated || id.role == MemberRole::kWorker) return absl::OkStatus();
  if (id.rank >= options_.servers) return absl::InvalidArgumentError(absl::StrCat("got rank ", id.rank));
  if (id.role == MemberRole::kServer) {
    if (absl::Status status = membership_.Heartbeat(id); !status.ok()) return status;
    if (standbys_.Report(id.rank, news.standby)) {
      ++changes_;
      const bool in_step = standbys_.ready(id.rank) > 0;
      if (state_ == v1::JOB_STATE_RUNNING) {
        NoteLocked(absl::StrCat("standby ", id.rank, in_step ? " is in step" : " does not follow any more",
                                in_step ? "" : absl::StrCat("; server ", id.rank, " goes on without it")));
      }
    }
    const std::optional<Membership::Member> standby = membership_.Find(MemberRole::kStandby, id.rank);
    if (standby.has_value() && standbys_.follower(id.rank) == standby->id.incarnation) verdict.standby = *standby;
    return absl::OkStatus();
  }
  const std::optional<Membership::Member> server = membership_.Find(MemberRole::kServer, id.rank);
  const bool follows = standbys_.follower(id.rank) == id.incarnation;
  if (follows && news.server_lost && server.has_value() && server->state == Membership::State::kJoined) {
    const absl::Duration silent = clock_->Now() - server->last_heard;
    if (silent > options_.member_ttl / 15 * kBeatsMissed) {
      const std::string how = absl::StrCat("left its standby and was not heard of for ",
                                           absl::FormatDuration(absl::Trunc(silent, absl::Milliseconds(1))));
      membership_.Leave(server->id, Membership::State::kLost, how).IgnoreError();
      // This heartbeat is not counted yet.
      membership_.Heartbeat(id).IgnoreError();
      TakeOverLocked(id.rank, absl::StrCat(ballast::Describe(*server), " ", how));
    }
  }
  if (const std::optional<uint64_t> promoted = standbys_.PromotedTo(id.rank, id.incarnation); promoted.has_value()) {
    verdict.promoted = Membership::Id{MemberRole::kServer, id.rank, *promoted};
    return absl::OkStatus();
  }
  if (standbys_.follower(id.rank) == id.incarnation) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("standby ", id.rank, ", incarnation ", id.incarnation, ", does not follow its server any more"));
}

bool Coordinator::TakeOverLocked(uint32_t rank, const std::string& what) {
  const uint64_t ready = standbys_.ready(rank);
  const std::optional<Membership::Member> standby = membership_.Find(MemberRole::kStandby, rank);
  if (ready == 0 || !standby.has_value() || standby->id.incarnation != ready ||
      standby->state != Membership::State::kJoined) {
    return false;
  }
  const Membership::Id server = membership_.Promote(rank);
  standbys_.Promote(rank, server.incarnation);
  if (!map_.shards().empty()) map_.Move(rank, standby->address);
  ++servers_lost_;
  NoteLocked(absl::StrCat(what, "; its standby (", standby->description, ") takes over at ", standby->address));
  return true;
}

void Coordinator::TakeOverSilentLocked() {
  if (!options_.replicated) return;
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
  FailLocked(absl::StrCat(what, ", and what it held is gone: no standby was in step with it"));
}

ShardMap Coordinator::ShardMapLocked() const {
  return map_.shards().empty() ? ShardMap(membership_.ServerAddresses()) : map_;
}

ShardMap Coordinator::shard_map() const {
  absl::MutexLock lock(&mutex_);
  return ShardMapLocked();
}

void Coordinator::AwaitShardMap(uint64_t newer_than, absl::Duration wait, MapDone done) {
  AwaitShardMapUntil(newer_than, clock_->Now() + wait, std::move(done));
}

void Coordinator::AwaitShardMapUntil(uint64_t newer_than, absl::Time deadline, MapDone done) {
  std::optional<ShardMap> map;
  {
    absl::MutexLock lock(&mutex_);
    if (newer_than == 0 || map_.epoch() > newer_than) map = ShardMapLocked();
    if (!map.has_value()) {
      auto look_again = [this, newer_than, deadline, done](const absl::Status& status) {
        if (status.ok()) return AwaitShardMapUntil(newer_than, deadline, done);
        if (status.code() != absl::StatusCode::kDeadlineExceeded) return done(status);
        done(shard_map());
      };
      parked_.push_back(waits_.Enter(
          1, deadline, [] { return std::string("the shard map to change"); }, look_again));
    }
  }
  if (map.has_value()) done(*std::move(map));
}

}  // namespace ballast
