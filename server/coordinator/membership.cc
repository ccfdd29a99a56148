// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status/error_reason.h"

namespace ballast {

absl::string_view RoleName(MemberRole role) {
  switch (role) {
    case MemberRole::kServer:
      return "server";
    case MemberRole::kWorker:
      return "worker";
    case MemberRole::kStandby:
      return "standby";
  }
  return "";
}

v1::Member ToProto(const Membership::Id& id) {
  v1::Member member;
  switch (id.role) {
    case MemberRole::kServer:
      member.set_role(v1::ROLE_SERVER);
      break;
    case MemberRole::kWorker:
      member.set_role(v1::ROLE_WORKER);
      break;
    case MemberRole::kStandby:
      member.set_role(v1::ROLE_STANDBY);
      break;
  }
  member.set_rank(id.rank);
  member.set_incarnation(id.incarnation);
  return member;
}

absl::StatusOr<Membership::Id> FromProto(const v1::Member& member) {
  switch (member.role()) {
    case v1::ROLE_SERVER:
      return Membership::Id{MemberRole::kServer, member.rank(), member.incarnation()};
    case v1::ROLE_WORKER:
      return Membership::Id{MemberRole::kWorker, member.rank(), member.incarnation()};
    case v1::ROLE_STANDBY:
      return Membership::Id{MemberRole::kStandby, member.rank(), member.incarnation()};
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("member: got role ", member.role(), ", want server, worker or standby"));
  }
}

std::string Describe(const Membership::Member& member) {
  return absl::StrCat(RoleName(member.id.role), " ", member.id.rank, " (", member.description, ")");
}

absl::StatusOr<uint32_t> Membership::CheckJoin(MemberRole role, std::optional<uint32_t> rank, absl::string_view address,
                                               absl::string_view description) const {
  const uint32_t count = CountOf(role);
  if (!rank.has_value()) {
    for (uint32_t free = 0; free < count && !rank.has_value(); ++free) {
      const auto member = members_.find({role, free});
      if (member == members_.end() || member->second.state != State::kJoined) rank = free;
    }
    if (!rank.has_value()) {
      return WithReason(v1::ERROR_REASON_RANKS_FULL,
                        absl::FailedPreconditionError(
                            absl::StrCat("all ", count, " ", RoleName(role), " ranks of the job are taken")),
                        {{"role", RoleName(role)}});
    }
  }
  if (*rank >= count) {
    return absl::InvalidArgumentError(absl::StrCat("got ", RoleName(role), " rank ", *rank, ", want below ", count,
                                                   ", the number of ", RoleName(role), "s in the job"));
  }
  const auto found = members_.find({role, *rank});
  if (found == members_.end() || found->second.state != State::kJoined) return *rank;
  const Member& member = found->second;
  const bool same_place = role != MemberRole::kWorker && !address.empty() && member.address == address;
  if (member.description == description || same_place) return *rank;
  return WithReason(
      v1::ERROR_REASON_RANK_TAKEN,
      absl::AlreadyExistsError(absl::StrCat(Describe(member), " has that rank and is alive; got ", description)),
      {{"role", RoleName(role)}, {"rank", absl::StrCat(*rank)}, {"process", member.description}});
}

absl::StatusOr<Membership::Id> Membership::Join(MemberRole role, std::optional<uint32_t> rank, std::string address,
                                                std::string description, uint64_t process,
                                                std::string control_address) {
  const absl::StatusOr<uint32_t> free = CheckJoin(role, rank, address, description);
  if (!free.ok()) return free.status();
  rank = *free;
  Member& member = members_[{role, *rank}];
  const uint64_t first = role == MemberRole::kWorker ? first_incarnation(*rank) : 1;
  member.id = {role, *rank, std::max(member.id.incarnation + 1, first)};
  member.address = std::move(address);
  member.control_address = std::move(control_address);
  member.description = std::move(description);
  member.process = process;
  member.state = State::kJoined;
  member.last_heard = clock_->Now();
  member.reason.clear();
  return member.id;
}

absl::StatusOr<Membership::Member*> Membership::FindLive(const Id& id) {
  const auto member = members_.find({id.role, id.rank});
  if (member == members_.end()) {
    return WithReason(v1::ERROR_REASON_MEMBER_LOST,
                      absl::FailedPreconditionError(absl::StrCat(RoleName(id.role), " ", id.rank, " has not joined")),
                      {{"role", RoleName(id.role)}, {"rank", absl::StrCat(id.rank)}});
  }
  if (member->second.id.incarnation == id.incarnation) return &member->second;
  return WithReason(v1::ERROR_REASON_MEMBER_LOST,
                    absl::FailedPreconditionError(absl::StrCat(RoleName(id.role), " ", id.rank, ": got incarnation ",
                                                               id.incarnation, ", want ", member->second.id.incarnation,
                                                               ": another process has taken its place")),
                    {{"role", RoleName(id.role)}, {"rank", absl::StrCat(id.rank)}});
}

absl::Status Membership::CheckJoined(const Id& id) {
  absl::StatusOr<Member*> member = FindLive(id);
  if (!member.ok()) return member.status();
  if ((*member)->state == State::kJoined) return absl::OkStatus();
  return WithReason(v1::ERROR_REASON_MEMBER_LOST,
                    absl::FailedPreconditionError(absl::StrCat(Describe(**member), " is no longer part of the job")),
                    {{"role", RoleName(id.role)}, {"rank", absl::StrCat(id.rank)}});
}

absl::Status Membership::Heartbeat(const Id& id) {
  absl::StatusOr<Member*> member = FindLive(id);
  if (!member.ok()) return member.status();
  if ((*member)->state == State::kLost && id.role == MemberRole::kServer) {
    (*member)->state = State::kJoined;
    (*member)->reason.clear();
  }
  if (absl::Status status = CheckJoined(id); !status.ok()) return status;
  (*member)->last_heard = clock_->Now();
  return absl::OkStatus();
}

absl::Status Membership::Leave(const Id& id, State state, std::string reason) {
  absl::StatusOr<Member*> member = FindLive(id);
  if (!member.ok()) return member.status();
  if ((*member)->state != State::kJoined) return absl::OkStatus();
  (*member)->state = state;
  (*member)->reason = std::move(reason);
  (*member)->gone_since = clock_->Now();
  return absl::OkStatus();
}

std::vector<Membership::Member> Membership::Expire() {
  std::vector<Member> lost;
  const absl::Time now = clock_->Now();
  for (auto& [key, member] : members_) {
    const auto& [role, rank] = key;
    if (member.state != State::kJoined || now - member.last_heard < ttl_) continue;
    const auto server = members_.find({MemberRole::kServer, rank});
    const bool alone = server == members_.end() || server->second.state != State::kJoined ||
                       now - server->second.last_heard >= ttl_ / 3;
    if (role == MemberRole::kStandby && alone) continue;
    member.state = State::kLost;
    member.reason = absl::StrCat("sent no heartbeat for ", absl::FormatDuration(ttl_));
    member.gone_since = now;
    lost.push_back(member);
  }
  return lost;
}

void Membership::Discount(absl::Duration silence) {
  const absl::Time now = clock_->Now();
  for (auto& [key, member] : members_) {
    absl::Time& since = member.state == State::kJoined ? member.last_heard : member.gone_since;
    since = std::min(since + silence, now);
  }
}

Membership::Id Membership::Promote(uint32_t rank) {
  Member& standby = members_.at({MemberRole::kStandby, rank});
  Member& server = members_[{MemberRole::kServer, rank}];
  server.id = {MemberRole::kServer, rank, server.id.incarnation + 1};
  server.address = std::exchange(standby.address, "");
  server.control_address = std::exchange(standby.control_address, "");
  server.description = standby.description;
  server.process = standby.process;
  server.state = State::kJoined;
  server.last_heard = standby.last_heard;
  server.reason.clear();
  standby.state = State::kLeft;
  standby.reason = "took over";
  standby.gone_since = clock_->Now();
  return server.id;
}

std::optional<Membership::Member> Membership::Find(MemberRole role, uint32_t rank) const {
  const auto member = members_.find({role, rank});
  if (member == members_.end()) return std::nullopt;
  return member->second;
}

bool Membership::IsFresh(MemberRole role, uint32_t rank) const {
  const auto member = members_.find({role, rank});
  return member != members_.end() && member->second.state == State::kJoined &&
         clock_->Now() - member->second.last_heard < ttl_;
}

std::vector<std::string> Membership::MissingOf(MemberRole role) const {
  std::vector<std::string> missing;
  for (uint32_t rank = 0; rank < CountOf(role); ++rank) {
    const auto member = members_.find({role, rank});
    const bool here = member != members_.end() && member->second.state == State::kJoined;
    if (!here) missing.push_back(absl::StrCat(RoleName(role), " ", rank));
  }
  return missing;
}

std::string Membership::MissingServers() const { return absl::StrJoin(MissingOf(MemberRole::kServer), ", "); }

std::string Membership::Missing() const {
  std::vector<std::string> missing = MissingOf(MemberRole::kServer);
  if (pairs_) {
    for (std::string& standby : MissingOf(MemberRole::kStandby)) missing.push_back(std::move(standby));
  }
  for (std::string& worker : MissingOf(MemberRole::kWorker)) missing.push_back(std::move(worker));
  return absl::StrJoin(missing, ", ");
}

std::vector<std::string> Membership::ServerAddresses() const {
  std::vector<std::string> addresses(servers_);
  for (const auto& [key, member] : members_) {
    if (key.first == MemberRole::kServer) addresses[key.second] = member.address;
  }
  return addresses;
}

std::vector<std::string> Membership::ServerControlAddresses() const {
  std::vector<std::string> addresses(servers_);
  for (const auto& [key, member] : members_) {
    if (key.first == MemberRole::kServer) addresses[key.second] = member.control_address;
  }
  return addresses;
}

bool Membership::AnyJoined(MemberRole role) const {
  for (const auto& [key, member] : members_) {
    if (key.first == role && member.state == State::kJoined) return true;
  }
  return false;
}

std::optional<uint32_t> Membership::FirstLost(MemberRole role) const {
  for (const auto& [key, member] : members_) {
    if (key.first == role && member.state == State::kLost) return key.second;
  }
  return std::nullopt;
}

void Membership::Restore(std::vector<Member> members) {
  const absl::Time now = clock_->Now();
  for (Member& member : members) {
    member.last_heard = member.gone_since = now;
    const Key key = {member.id.role, member.id.rank};
    members_[key] = std::move(member);
  }
}

std::vector<Membership::Member> Membership::members() const {
  std::vector<Member> members;
  for (const auto& [key, member] : members_) members.push_back(member);
  return members;
}

}  // namespace ballast
