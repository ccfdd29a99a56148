// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/internal/v1/coordinator_state.pb.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "google/protobuf/repeated_field.h"

namespace ballast {

// In the order of v1::Role. A standby has the rank of its server.
enum class MemberRole { kServer, kWorker, kStandby };

absl::string_view RoleName(MemberRole role);

// Returns at most 2 KiB of what a process says of itself, in one line that cannot control a terminal. The rest is left
// out, because every heartbeat and every saved state repeats it.
std::string MemberText(absl::string_view text);

// Owns the members of a job: ranks, incarnations, and the time of each one's last heartbeat. Invariant: a rank has at
// most one live member, whose incarnation exceeds all earlier ones of that rank. Deliberately does not know what a
// loss means to the job.
// Thread safety: none; the coordinator guards it.
class Membership {
 public:
  struct Id {
    MemberRole role = MemberRole::kServer;
    uint32_t rank = 0;
    uint64_t incarnation = 0;
    friend auto operator<=>(const Id&, const Id&) = default;
  };
  // In the order of MemberRecord.State.
  enum class State { kJoined, kLeft, kLost, kFailed };
  struct Member {
    Id id;
    std::string address;
    // Address of a server's control port, if it has one.
    std::string control_address;
    std::string description;
    // Operating system's process id; 0: unknown.
    uint64_t process = 0;
    State state = State::kJoined;
    absl::Time last_heard;
    // Why the member left, was lost or failed, and when.
    std::string reason;
    absl::Time gone_since;
    // True from Restore until the member's first heartbeat after it.
    bool returning = false;
  };

  using Key = std::pair<MemberRole, uint32_t>;

  // A member may take this long to find a coordinator that has returned, perhaps at another address: its connection
  // attempts to the old one must time out, and name servers remember that one for a while.
  static constexpr absl::Duration kReturnTime = absl::Seconds(10);

  // `pairs`: true if each server has a standby.
  Membership(uint32_t servers, uint32_t workers, absl::Duration ttl, bool pairs = false)
      : servers_(servers), workers_(workers), ttl_(ttl), pairs_(pairs) {}

  // ALREADY_EXISTS if a live member has the rank, INVALID_ARGUMENT if it is too high, FAILED_PRECONDITION if no rank
  // is free. A member that joins again with the same description replaces itself, because the response may have been
  // lost. A server at the same address replaces the previous one, because two cannot share an address.
  absl::StatusOr<Id> Join(MemberRole role, std::optional<uint32_t> rank, std::string address, std::string description,
                          absl::Time now, uint64_t process = 0, std::string control_address = "");

  // Returns the rank or the error that Join would return; changes nothing.
  absl::StatusOr<uint32_t> CheckJoin(MemberRole role, std::optional<uint32_t> rank, absl::string_view address,
                                     absl::string_view description) const;

  // FAILED_PRECONDITION for a member that was replaced or lost, or has left. A lost server that was not replaced
  // becomes a member again, because it still holds its shard.
  absl::Status Heartbeat(const Id& id, absl::Time now);

  // Returns the error that Heartbeat would return for a member that is not kJoined, but is not a sign of life of that
  // member.
  absl::Status CheckJoined(const Id& id) const;

  // `state` is any state except kJoined. OK if the member is no longer joined.
  absl::Status Leave(const Id& id, State state, std::string reason, absl::Time now);

  // Marks members without a heartbeat for `ttl`, after Restore for kReturnTime, as lost, and returns them. A standby
  // stays if its server is lost or has sent no recent heartbeat: it may hold the only copy.
  std::vector<Member> Expire(absl::Time now);

  // No heartbeat could arrive for the last `silence`: takes that time off each member's silence or absence.
  void Discount(absl::Duration silence, absl::Time now);

  // Makes the joined standby of that rank its server, with a new incarnation. The rank has no standby then.
  Id Promote(uint32_t rank, absl::Time now);

  // The ranks without a member: "server 1, worker 0".
  std::string Missing() const;
  std::string MissingServers() const;

  // Returns that address of each server, by rank; empty for servers that have not joined.
  std::vector<std::string> ServerAddresses(std::string Member::*address) const;

  // True if a member of that role is joined.
  bool AnyJoined(MemberRole role) const;
  // Returns the newest member of that rank, if there was any.
  std::optional<Member> Find(MemberRole role, uint32_t rank) const;
  // True if the member is joined and its last heartbeat is less than `ttl` ago.
  bool IsFresh(MemberRole role, uint32_t rank, absl::Time now) const;

  google::protobuf::RepeatedPtrField<internal::v1::MemberRecord> Export() const;
  // Incarnations continue from those restored. All members count as heard now. INVALID_ARGUMENT, and no effect, if
  // the members do not fit a job of this size.
  absl::Status Restore(const google::protobuf::RepeatedPtrField<internal::v1::MemberRecord>& records, absl::Time now);

  // Call before any Join: incarnations of workers, by rank, will exceed these.
  void BeginAbove(std::vector<uint64_t> workers) { worker_floor_ = std::move(workers); }
  // Incarnation of the first worker of that rank.
  uint64_t first_incarnation(uint32_t worker) const {
    return worker < worker_floor_.size() ? worker_floor_[worker] + 1 : 1;
  }

  const std::map<Key, Member>& members() const { return members_; }

 private:
  absl::StatusOr<const Member*> FindLive(const Id& id) const;
  absl::StatusOr<Member> FromRecord(const internal::v1::MemberRecord& record) const;
  uint32_t CountOf(MemberRole role) const { return role == MemberRole::kWorker ? workers_ : servers_; }
  std::vector<std::string> MissingOf(MemberRole role) const;

  const uint32_t servers_;
  const uint32_t workers_;
  const absl::Duration ttl_;
  const bool pairs_;
  std::map<Key, Member> members_;
  std::vector<uint64_t> worker_floor_;
};

// A process that asks to join.
struct Newcomer {
  MemberRole role = MemberRole::kServer;
  std::optional<uint32_t> rank;
  std::string address;
  std::string description;
  // Workers only.
  v1::Job job;
  uint64_t train_examples = 0;
  bool with_standby = false;
  // Operating system's process id; 0: unknown.
  uint64_t process = 0;
  // Address of a server's control port, if it has one.
  std::string control_address;
};

// The role and rank of a newcomer that may join, and the members whose process must have ended, because the newcomer
// has their address.
struct Admission {
  MemberRole role = MemberRole::kServer;
  uint32_t rank = 0;
  std::vector<Membership::Member> replaced;
};

v1::Member ToProto(const Membership::Id& id);
// INVALID_ARGUMENT for an unknown role.
absl::StatusOr<Membership::Id> FromProto(const v1::Member& member);

// Returns "joined", "left", "lost" or "failed".
absl::string_view StateName(Membership::State state);

// Returns "worker 1 (host, process 4711)".
std::string Describe(const Membership::Member& member);

}  // namespace ballast
