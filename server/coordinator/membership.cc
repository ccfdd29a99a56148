// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status/error_reason.h"

namespace ballast {

absl::string_view RoleName(MemberRole role) {
  constexpr absl::string_view kNames[] = {"server", "worker", "standby"};
  return kNames[static_cast<int>(role)];
}

std::string MemberText(absl::string_view text) {
  constexpr size_t kMost = 2048;
  size_t size = std::min(text.size(), kMost);
  // Do not cut inside a UTF-8 character.
  while (size < text.size() && size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  std::string line(text.substr(0, size));
  for (char& c : line) {
    if (c == '\n' || c == '\t') c = ' ';
    if (absl::ascii_iscntrl(c)) c = '?';
  }
  return size < text.size() ? absl::StrCat(line, " ... (truncated)") : line;
}

absl::string_view StateName(Membership::State state) {
  constexpr absl::string_view kNames[] = {"joined", "left", "lost", "failed"};
  return kNames[static_cast<int>(state)];
}

v1::Member ToProto(const Membership::Id& id) {
  v1::Member member;
  member.set_role(static_cast<v1::Role>(v1::ROLE_SERVER + static_cast<int>(id.role)));
  member.set_rank(id.rank);
  member.set_incarnation(id.incarnation);
  return member;
}

absl::StatusOr<Membership::Id> FromProto(const v1::Member& member) {
  if (member.role() < v1::ROLE_SERVER || member.role() > v1::ROLE_STANDBY) {
    return absl::InvalidArgumentError(
        absl::StrCat("member: got role ", member.role(), ", want server, worker or standby"));
  }
  return Membership::Id{static_cast<MemberRole>(member.role() - v1::ROLE_SERVER), member.rank(), member.incarnation()};
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
                                                std::string description, absl::Time now, uint64_t process,
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
  member.last_heard = now;
  member.reason.clear();
  return member.id;
}

absl::StatusOr<const Membership::Member*> Membership::FindLive(const Id& id) const {
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

absl::Status Membership::CheckJoined(const Id& id) const {
  const absl::StatusOr<const Member*> member = FindLive(id);
  if (!member.ok()) return member.status();
  if ((*member)->state == State::kJoined) return absl::OkStatus();
  return WithReason(v1::ERROR_REASON_MEMBER_LOST,
                    absl::FailedPreconditionError(absl::StrCat(Describe(**member), " is no longer part of the job")),
                    {{"role", RoleName(id.role)}, {"rank", absl::StrCat(id.rank)}});
}

absl::Status Membership::Heartbeat(const Id& id, absl::Time now) {
  if (absl::Status status = FindLive(id).status(); !status.ok()) return status;
  Member& member = members_[{id.role, id.rank}];
  if (member.state == State::kLost && id.role == MemberRole::kServer) {
    member.state = State::kJoined;
    member.reason.clear();
  }
  if (absl::Status status = CheckJoined(id); !status.ok()) return status;
  member.last_heard = now;
  member.returning = false;
  return absl::OkStatus();
}

absl::Status Membership::Leave(const Id& id, State state, std::string reason, absl::Time now) {
  if (absl::Status status = FindLive(id).status(); !status.ok()) return status;
  Member& member = members_[{id.role, id.rank}];
  if (member.state != State::kJoined) return absl::OkStatus();
  member.state = state;
  member.reason = std::move(reason);
  member.gone_since = now;
  return absl::OkStatus();
}

std::vector<Membership::Member> Membership::Expire(absl::Time now) {
  std::vector<Member> lost;
  for (auto& [key, member] : members_) {
    const auto& [role, rank] = key;
    const absl::Duration limit = member.returning ? std::max(ttl_, kReturnTime) : ttl_;
    if (member.state != State::kJoined || now - member.last_heard < limit) continue;
    const auto server = members_.find({MemberRole::kServer, rank});
    const bool alone = server == members_.end() || server->second.state != State::kJoined ||
                       now - server->second.last_heard >= ttl_ / 3;
    if (role == MemberRole::kStandby && alone) continue;
    member.state = State::kLost;
    member.reason = absl::StrCat("sent no heartbeat for ", absl::FormatDuration(limit));
    member.gone_since = now;
    lost.push_back(member);
  }
  return lost;
}

void Membership::Discount(absl::Duration silence, absl::Time now) {
  for (auto& [key, member] : members_) {
    absl::Time& since = member.state == State::kJoined ? member.last_heard : member.gone_since;
    since = std::min(since + silence, now);
  }
}

Membership::Id Membership::Promote(uint32_t rank, absl::Time now) {
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
  standby.gone_since = now;
  return server.id;
}

std::optional<Membership::Member> Membership::Find(MemberRole role, uint32_t rank) const {
  const auto member = members_.find({role, rank});
  if (member == members_.end()) return std::nullopt;
  return member->second;
}

bool Membership::IsFresh(MemberRole role, uint32_t rank, absl::Time now) const {
  const auto member = members_.find({role, rank});
  return member != members_.end() && member->second.state == State::kJoined && now - member->second.last_heard < ttl_;
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

std::vector<std::string> Membership::ServerAddresses(std::string Member::*address) const {
  std::vector<std::string> addresses(servers_);
  for (const auto& [key, member] : members_) {
    if (key.first == MemberRole::kServer) addresses[key.second] = member.*address;
  }
  return addresses;
}

bool Membership::AnyJoined(MemberRole role) const {
  for (const auto& [key, member] : members_) {
    if (key.first == role && member.state == State::kJoined) return true;
  }
  return false;
}

google::protobuf::RepeatedPtrField<internal::v1::MemberRecord> Membership::Export() const {
  google::protobuf::RepeatedPtrField<internal::v1::MemberRecord> records;
  for (const auto& [key, member] : members_) {
    internal::v1::MemberRecord* record = records.Add();
    *record->mutable_member() = ToProto(member.id);
    record->set_address(member.address);
    record->set_control_address(member.control_address);
    record->set_description(member.description);
    record->set_process(member.process);
    record->set_reason(member.reason);
    record->set_state(static_cast<internal::v1::MemberRecord::State>(1 + static_cast<int>(member.state)));
  }
  return records;
}

absl::StatusOr<Membership::Member> Membership::FromRecord(const internal::v1::MemberRecord& record) const {
  const absl::StatusOr<Id> id = FromProto(record.member());
  if (!id.ok()) return id.status();
  const uint32_t count = CountOf(id->role);
  if (id->rank >= count || id->incarnation == 0) {
    return absl::InvalidArgumentError(absl::StrCat("saved member: got ", RoleName(id->role), " ", id->rank,
                                                   ", incarnation ", id->incarnation, ", want a rank below ", count));
  }
  if (record.state() < 1 || record.state() > 4) {
    return absl::InvalidArgumentError(absl::StrCat("saved member: got state ", record.state(), ", want 1 to 4"));
  }
  return Member{.id = *id,
                .address = record.address(),
                .control_address = record.control_address(),
                .description = record.description(),
                .process = record.process(),
                .state = static_cast<State>(record.state() - 1),
                .reason = record.reason()};
}

absl::Status Membership::Restore(const google::protobuf::RepeatedPtrField<internal::v1::MemberRecord>& records,
                                 absl::Time now) {
  std::map<Key, Member> members;
  for (const internal::v1::MemberRecord& record : records) {
    absl::StatusOr<Member> member = FromRecord(record);
    if (!member.ok()) return member.status();
    member->last_heard = member->gone_since = now;
    member->returning = true;
    members.insert_or_assign({member->id.role, member->id.rank}, *std::move(member));
  }
  members_ = std::move(members);
  return absl::OkStatus();
}

}  // namespace ballast
