// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/server_control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// Heartbeats that a server must have missed to be lost once its standby has lost it, too.
constexpr int kMissedHeartbeats = 4;

// A lost server may be alive, and it holds the only copy of its state.
bool IsThere(const Membership::Member& member) {
  return member.state == Membership::State::kJoined ||
         (member.state == Membership::State::kLost && member.id.role == MemberRole::kServer);
}

}  // namespace

ServerControl::ServerControl(const JobOptions& options, Membership* members, JobStatus* status)
    : options_(options), members_(*members), status_(*status), standbys_(options.servers) {
  if (!options.resume.has_value()) return;
  // If the checkpoint is damaged, the shards report the error when they load it.
  if (absl::StatusOr<ShardMap> map = ShardMap::FromProto(options.resume->map()); map.ok())
    resumed_map_ = *std::move(map);
}

absl::StatusOr<Admission> ServerControl::CheckJoin(const Newcomer& newcomer, std::optional<uint32_t> rank) const {
  if (newcomer.with_standby != options_.with_standby) {
    return WithReason(v1::ERROR_REASON_SERVERS_DIFFER,
                      absl::FailedPreconditionError(absl::StrCat(
                          newcomer.description, newcomer.with_standby ? " was started with" : " was started without",
                          " --with_standby, server 0 ", newcomer.with_standby ? "without" : "with",
                          " it: want the same for all servers")));
  }
  Admission admission{MemberRole::kServer, rank.value_or(0), {}};
  if (options_.with_standby) {
    if (!rank.has_value() || *rank >= options_.servers) {
      return absl::InvalidArgumentError(
          absl::StrCat("join: a server with --with_standby needs a rank below ", options_.servers));
    }
    bool takeover = false;
    for (MemberRole role : {MemberRole::kServer, MemberRole::kStandby}) {
      const std::optional<Membership::Member> before = members_.Find(role, *rank);
      const bool there = before.has_value() && IsThere(*before);
      if (there && before->address == newcomer.address && before->description != newcomer.description) {
        admission.replaced.push_back(*before);
        takeover = takeover || (role == MemberRole::kServer && ReadyStandby(*rank).has_value());
      } else if (there && role == MemberRole::kServer && before->address != newcomer.address) {
        admission.role = MemberRole::kStandby;
      }
    }
    // The standby's rank is free once it has become the server.
    if (takeover) admission.role = MemberRole::kStandby;
    if (takeover) return admission;
  }
  const absl::StatusOr<uint32_t> free =
      members_.CheckJoin(admission.role, rank, newcomer.address, newcomer.description);
  if (!free.ok()) return free.status();
  admission.rank = *free;
  return admission;
}

void ServerControl::OnJoin(const Membership::Id& id, std::string control_address) {
  if (id.role == MemberRole::kStandby) return standbys_.Follow(id.rank, id.incarnation);
  // A returning server may have a different control port.
  if (placed()) map_.MoveControl(id.rank, std::move(control_address));
}

absl::StatusOr<ServerControl::Peer> ServerControl::OnReport(const Membership::Id& id, const ReplicationReport& report,
                                                            absl::Time now) {
  Peer peer;
  if (!options_.with_standby || id.role == MemberRole::kWorker) return peer;
  if (id.rank >= options_.servers)
    return absl::InvalidArgumentError(absl::StrCat("got rank ", id.rank, ", want below ", options_.servers));
  if (id.role == MemberRole::kServer) {
    if (absl::Status status = members_.Heartbeat(id, now); !status.ok()) return status;
    if (standbys_.Report(id.rank, report.standby)) {
      status_.Change();
      const bool in_step = standbys_.ready(id.rank) > 0;
      if (status_.running()) {
        const std::string& why = report.standby.reason();
        status_.Note(in_step ? absl::StrCat("standby ", id.rank, " is in step")
                             : absl::StrCat("standby ", id.rank, " no longer follows", why.empty() ? "" : " (", why,
                                            why.empty() ? "" : ")", "; server ", id.rank, " continues without it"));
      }
    }
    const std::optional<Membership::Member> standby = members_.Find(MemberRole::kStandby, id.rank);
    if (standby.has_value() && standbys_.follower(id.rank) == standby->id.incarnation) peer.standby = *standby;
    return peer;
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
    if (absl::Status status = members_.Heartbeat(id, now); !status.ok()) return status;
    const std::optional<Membership::Member> server = members_.Find(MemberRole::kServer, id.rank);
    const absl::Duration silent = server.has_value() ? now - server->last_heard : absl::ZeroDuration();
    // Both have lost the server.
    if (report.server_lost && silent > options_.member_ttl / 15 * kMissedHeartbeats &&
        server->state == Membership::State::kJoined) {
      const std::string how = absl::StrCat("lost contact with its standby and sent no heartbeat for ",
                                           absl::FormatDuration(absl::Trunc(silent, absl::Milliseconds(1))));
      members_.Leave(server->id, Membership::State::kLost, how, now).IgnoreError();
      TakeOver(id.rank, absl::StrCat(ballast::Describe(*server), " ", how), now);
    }
    promoted = standbys_.PromotedTo(id.rank, id.incarnation);
  }
  if (promoted.has_value()) peer.promoted = Membership::Id{MemberRole::kServer, id.rank, *promoted};
  return peer;
}

std::optional<Membership::Member> ServerControl::ReadyStandby(uint32_t rank) const {
  const uint64_t ready = standbys_.ready(rank);
  std::optional<Membership::Member> standby = members_.Find(MemberRole::kStandby, rank);
  const bool may = ready > 0 && standby.has_value() && standby->id.incarnation == ready &&
                   standby->state == Membership::State::kJoined;
  return may ? standby : std::nullopt;
}

bool ServerControl::TakeOver(uint32_t rank, const std::string& what, absl::Time now) {
  const std::optional<Membership::Member> standby = ReadyStandby(rank);
  if (!standby.has_value()) return false;
  const Membership::Id server = members_.Promote(rank, now);
  standbys_.Promote(rank, server.incarnation);
  if (placed()) map_.Move(rank, standby->address, standby->control_address);
  status_.CountLostServer();
  status_.Note(absl::StrCat(what, "; its standby (", standby->description, ") takes over at ", standby->address));
  return true;
}

void ServerControl::TakeOverSilent(absl::Time now) {
  if (!options_.with_standby) return;
  for (uint32_t rank = 0; rank < options_.servers; ++rank) {
    const std::optional<Membership::Member> server = members_.Find(MemberRole::kServer, rank);
    if (!server.has_value() || server->state == Membership::State::kJoined) continue;
    if (!members_.IsFresh(MemberRole::kStandby, rank, now)) continue;
    TakeOver(rank, absl::StrCat(ballast::Describe(*server), " ", server->reason), now);
  }
}

void ServerControl::LoseServer(uint32_t rank, const std::string& what, absl::Time now) {
  if (TakeOver(rank, what, now)) return;
  if (!placed() && status_.gathering()) return;
  status_.Fail(absl::StrCat(what, ", and its shard is lost: no standby was in step with it"),
               members_.Find(MemberRole::kServer, rank), now);
}

absl::Status ServerControl::Place(absl::Span<const v1::TensorSpec> specs, absl::Span<const v1::TableSpec> tables) {
  const ShardMap* const earlier = resumed_map_.has_value() ? &*resumed_map_ : nullptr;
  if (placed()) return map_.Place(specs, tables, earlier);
  ShardMap first = shard_map();
  if (absl::Status status = first.Place(specs, tables, earlier); !status.ok()) return status;
  map_ = std::move(first);
  return absl::OkStatus();
}

ShardMap ServerControl::shard_map() const {
  if (placed()) return map_;
  return ShardMap(members_.ServerAddresses(&Membership::Member::address),
                  members_.ServerAddresses(&Membership::Member::control_address));
}

void ServerControl::Export(internal::v1::CoordinatorState& state) const {
  *state.mutable_map() = map_.ToProto();
  if (!options_.with_standby) return;
  for (internal::v1::StandbyState& standby : standbys_.Export()) *state.add_standbys() = std::move(standby);
}

absl::Status ServerControl::Restore(const internal::v1::CoordinatorState& state) {
  if (state.map().shards_size() > 0) {
    absl::StatusOr<ShardMap> map = ShardMap::FromProto(state.map());
    if (!map.ok()) return map.status();
    map_ = *std::move(map);
  }
  if (!options_.with_standby) return absl::OkStatus();
  return standbys_.Restore({state.standbys().begin(), state.standbys().end()});
}

}  // namespace ballast
