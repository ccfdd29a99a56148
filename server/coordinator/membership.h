// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "common/concurrency/clock.h"

namespace ballast {

// A standby has its server's rank, and stands in for it.
enum class MemberRole { kServer, kWorker, kStandby };

// "server", "worker", "standby".
absl::string_view RoleName(MemberRole role);

// Who takes part in a job: ranks, incarnations, and when each was last heard of.
// Invariant: at most one live member has a rank; its incarnation is above all earlier ones of that rank. Deliberately
// does not know what a loss means to the job.
// Thread safety: none; the coordinator guards it.
class Membership {
 public:
  struct Id {
    MemberRole role = MemberRole::kServer;
    uint32_t rank = 0;
    uint64_t incarnation = 0;
  };
  enum class State { kJoined, kLeft, kLost, kFailed };
  struct Member {
    Id id;
    std::string address;
    // Of a server's control port, if it has one.
    std::string control_address;
    std::string description;
    // Of the operating system; 0: it did not say.
    uint64_t process = 0;
    State state = State::kJoined;
    absl::Time last_heard;
    // Why it was lost or failed, and since when it is not there.
    std::string reason;
    absl::Time gone_since;
  };

  // `pairs`: each server has a standby.
  Membership(uint32_t servers, uint32_t workers, absl::Duration ttl, const Clock* clock, bool pairs = false)
      : servers_(servers), workers_(workers), ttl_(ttl), pairs_(pairs), clock_(clock) {}

  // ALREADY_EXISTS when a live member has the rank, INVALID_ARGUMENT when it is too high, FAILED_PRECONDITION when
  // no rank is free. A member that joins again with the same description replaces itself: its answer may have been
  // lost. A server at the same address replaces the one before: two cannot have it.
  absl::StatusOr<Id> Join(MemberRole role, std::optional<uint32_t> rank, std::string address, std::string description,
                          uint64_t process = 0, std::string control_address = "");

  // The rank that Join would give, or the error that it would return; changes nothing.
  absl::StatusOr<uint32_t> CheckJoin(MemberRole role, std::optional<uint32_t> rank, absl::string_view address,
                                     absl::string_view description) const;

  // FAILED_PRECONDITION for a member that was replaced, given up or has left. A server that was given up and has not
  // been replaced is back: what it holds is nobody else's.
  absl::Status Heartbeat(const Id& id);

  // FAILED_PRECONDITION as Heartbeat, but the member was not heard of: another's call asks.
  absl::Status CheckJoined(const Id& id);

  // Any state but kJoined, with the reason where there is one. OK again for one that has ended.
  absl::Status Leave(const Id& id, State state, std::string reason = "");

  // Gives up the members unheard of for their time to live, and returns them. A standby whose server is not there,
  // or was not heard of lately either, stays: it may be all that is left.
  std::vector<Member> Expire();

  // Nobody could be heard for the last `silence`: takes it off what each member was silent, or was away.
  void Discount(absl::Duration silence);

  // Makes the standby of that rank, which has joined, its server, with a new incarnation. The rank has no standby then.
  Id Promote(uint32_t rank);

  // "server 1, worker 0": the ranks that nobody has.
  std::string Missing() const;
  std::string MissingServers() const;

  // By rank; empty strings for those that have not joined.
  std::vector<std::string> ServerAddresses() const;
  std::vector<std::string> ServerControlAddresses() const;

  // Whether any member of the role takes part now.
  bool AnyJoined(MemberRole role) const;
  // The newest member of that rank; nothing where there was none.
  std::optional<Member> Find(MemberRole role, uint32_t rank) const;
  // Whether it takes part and was heard of lately.
  bool IsFresh(MemberRole role, uint32_t rank) const;
  // The lowest rank whose member was lost.
  std::optional<uint32_t> FirstLost(MemberRole role) const;

  // With incarnations: those go on from there. All count as heard of now.
  void Restore(std::vector<Member> members);

  // Before any joins: workers' incarnations, by rank, are above these.
  void BeginAbove(std::vector<uint64_t> workers) { worker_floor_ = std::move(workers); }
  // That the first worker of that rank has.
  uint64_t first_incarnation(uint32_t worker) const {
    return worker < worker_floor_.size() ? worker_floor_[worker] + 1 : 1;
  }

  uint32_t servers() const { return servers_; }
  uint32_t workers() const { return workers_; }
  std::vector<Member> members() const;

 private:
  using Key = std::pair<MemberRole, uint32_t>;
  absl::StatusOr<Member*> FindLive(const Id& id);
  uint32_t CountOf(MemberRole role) const { return role == MemberRole::kWorker ? workers_ : servers_; }
  std::vector<std::string> MissingOf(MemberRole role) const;

  const uint32_t servers_;
  const uint32_t workers_;
  const absl::Duration ttl_;
  const bool pairs_;
  const Clock* const clock_;
  std::map<Key, Member> members_;
  std::vector<uint64_t> worker_floor_;
};

v1::Member ToProto(const Membership::Id& id);
// INVALID_ARGUMENT for an unknown role.
absl::StatusOr<Membership::Id> FromProto(const v1::Member& member);

// "worker 1 (host, process 4711)".
std::string Describe(const Membership::Member& member);

}  // namespace ballast
